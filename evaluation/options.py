"""The options of `domino eval`. Their defaults are those of `EvalSettings`."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from dataclasses import fields
from pathlib import Path

from ..settings import DTYPES
from .methods import METHODS
from .settings import EvalSettings, load
from .tasks import TASKS

ABOUT = (
    "Measure methods on tasks, interleaved on the same prompts. Can be stopped at any point: the same command goes on. "
    "Without a target it is the embedded SmolLM2 with its drafter. Methods: "
    + "; ".join(f"{name}: {method.about}" for name, method in METHODS.items())
    + "."
)


def add_options(parser: ArgumentParser) -> None:
    """Add them to a parser."""
    add = parser.add_argument
    add("config", type=Path, nargs="?", help="YAML with the fields of evaluation/settings.py; options go over it")
    add("--out", metavar="FOLDER", help="for the samples; goes on where it stopped")
    add("--target", help="folder or Hub id of the target, or smollm2, the embedded one (default)")
    add("--drafter", help="folder or Hub id of its Domino drafter")
    add("--assistant", help="folder or Hub id of an ordinary draft model")
    add(
        "--tasks", metavar="TASK=N,…", help=f"first N questions (all without =N) of {', '.join(TASKS)}; all=N: packaged"
    )
    add("--methods", type=names, metavar="NAME,…", help="plain is always one of them")
    add("--temperatures", type=numbers, metavar="T,…", help="0 is greedy")
    add("--max-new-tokens", type=int, metavar="N")
    add("--repeats", type=int, metavar="N", help="runs of each method on each question, in turn")
    add("--seed", type=int, metavar="N", help="of sampling")
    add("--shuffle", type=int, metavar="SEED", help="draw the questions as the protocol does (with 0)")
    add("--data", metavar="FOLDER", help="with <task>.jsonl files that go before the packaged ones")
    add("--dtype", choices=DTYPES)
    add("--execute-code", action=BooleanOptionalAction, help="run the target's programs to score HumanEval and MBPP")


def settings(args: Namespace) -> EvalSettings:
    """What they ask for. Raises `ValueError`: see `settings.load`."""
    flags = {f.name: getattr(args, f.name) for f in fields(EvalSettings) if hasattr(args, f.name)}
    model = {name: value for name in ("target", "drafter", "assistant") if (value := getattr(args, name)) is not None}
    if model:
        flags["models"] = [model]
    return load(args.config, flags)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]
