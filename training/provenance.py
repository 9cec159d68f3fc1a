"""`provenance.json`: what the shards of a folder were made of and with, and what came out."""

from __future__ import annotations

import json
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet

from ..installing import VERSION
from .shards import replacing

FILE = "provenance.json"
PACKAGES = ("torch", "transformers", "tokenizers", "accelerate", "datasets", "pyarrow", "safetensors")


def begin(folder: Path, facts: dict, notes: dict) -> None:
    """Record a run, or continue one that has the same `facts`; `notes` may differ.

    Raises:
        `ValueError`: the folder holds shards that were made otherwise; the differing keys are named.
    """
    if not (folder / FILE).is_file():
        if next(folder.glob("shard-*.parquet"), None) is not None:
            raise ValueError(f"{folder} holds shards but no {FILE} that says how they were made: choose another --out.")
        write(folder, {**facts, **notes, "command": shlex.join(sys.argv), "versions": versions()})
        return
    before = json.loads((folder / FILE).read_text(encoding="utf-8"))
    other = [f"  {k}: {before.get(k)!r} there, {v!r} now" for k, v in facts.items() if before.get(k) != v]
    if other:
        raise ValueError(
            "\n".join(
                [
                    f"{folder} holds shards made with other settings:",
                    *other,
                    "Choose another --out, or the same settings.",
                ]
            )
        )


def finish(folder: Path, totals: dict) -> None:
    """Add what came out."""
    write(folder, {**json.loads((folder / FILE).read_text(encoding="utf-8")), "totals": totals})


def write(folder: Path, content: dict) -> None:
    with replacing(folder / FILE) as part:
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    others = {name: version(name) for name in PACKAGES}
    return {"python": platform.python_version(), "domino": VERSION, **others}


def count(shards: list[Path]) -> dict[str, int]:
    """Answers and tokens in some shards."""
    total = {"answers": 0, "finished": 0, "prompt_tokens": 0, "answer_tokens": 0}
    for path in shards:
        table = pyarrow.parquet.read_table(path, columns=["input_ids", "prompt_length", "finished"]).to_pydict()
        prompts = sum(table["prompt_length"])
        total["answers"] += len(table["finished"])
        total["finished"] += sum(table["finished"])
        total["prompt_tokens"] += prompts
        total["answer_tokens"] += sum(map(len, table["input_ids"])) - prompts
    return total
