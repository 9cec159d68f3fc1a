"""`domino measure`: τ, speedup and losslessness of a drafter on the packaged prompts."""

from __future__ import annotations

import difflib
import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from statistics import mean

import torch
import transformers

from .compare import Comparison, compare

PROMPTS = Path(__file__).resolve().parent / "prompts"
TASKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")


def read_questions(task: str, count: int | None = None) -> list[str]:
    """The first `count` questions (first turns) of a packaged task, or all of them.

    Raises:
        `ValueError`: an unknown task (the nearest one is named), or more questions than it has.
    """
    if task not in TASKS:
        near = difflib.get_close_matches(task, TASKS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ":"
        raise ValueError(f"Unknown task {task!r}{hint} Packaged: {', '.join(TASKS)}.")
    with (PROMPTS / f"{task}.jsonl").open(encoding="utf-8") as lines:
        questions = [json.loads(line)["turns"][0] for line in lines]
    if count is not None and not 0 < count <= len(questions):
        raise ValueError(f"{task} has {len(questions)} packaged questions; ask for 1 … {len(questions)}, got {count}.")
    return questions[:count]


def parse_tasks(text: str) -> dict[str, int]:
    """{task: questions} of "gsm8k=30,humaneval=20"; no count means all packaged, "all=20" stands for every task.

    Raises:
        `ValueError`: not in this form, a task named twice, or what `read_questions` refuses.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        task, equals, count = part.strip().partition("=")
        if equals and not count.isdecimal():
            raise ValueError(f"--tasks takes task=count, e.g. gsm8k=30,humaneval=20 or all=20, got {part!r}.")
        for name in TASKS if task == "all" else [task]:
            if name in counts:
                raise ValueError(f"--tasks names {name} twice.")
            counts[name] = len(read_questions(name, int(count) if equals else None))  # refused now, not after minutes
    return counts


def provenance() -> dict:
    """Machine, versions, threads, command and commit, to stand beside every figure."""
    root = Path(__file__).resolve().parent
    commit = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return {
        "machine": platform.processor() or platform.machine(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "command": " ".join(sys.argv),
        "commit": commit.stdout.strip() or "unknown",
    }


def markdown(comparisons: list[Comparison], drafts: int) -> str:
    """The table of a measurement."""
    lines = [
        f"| task | prompts | τ ({drafts} drafts) | plain tok/s | Domino tok/s | speedup | same text | largest gap |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for c in comparisons:
        gap = f"{max(c.gaps):.3f}" if c.gaps else "–"
        lines.append(
            f"| {c.task} | {len(c.samples)} | {c.acceptance_length:.2f} | {c.plain_tok_per_s:.1f} | "
            f"{c.domino_tok_per_s:.1f} | {c.speedup:.2f}× | {c.same}/{len(c.samples)} | {gap} |"
        )
    if len(comparisons) > 1:
        tau, speedup = (mean(getattr(c, name) for c in comparisons) for name in ("acceptance_length", "speedup"))
        lines.append(f"| average | | {tau:.2f} | | | {speedup:.2f}× | | |")
    return "\n".join(lines)


def measure(target, draft, tokenizer, counts: dict[str, int], out: Path | None, **options) -> list[Comparison]:
    """Compare on each task of `counts` ({task: number of prompts}), print the table, write JSON to `out`."""
    results = [
        compare(target, draft, tokenizer, task, read_questions(task, n), **options) for task, n in counts.items()
    ]
    table = markdown(results, draft.config.num_drafts)
    print(table)
    if out is not None:
        record = {
            "provenance": provenance(),
            "dtype": str(target.dtype),
            "options": options,
            "table": table,
            "tasks": {c.task: [asdict(s) for s in c.samples] for c in results},
        }
        out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return results
