"""`domino measure`: τ, speedup and losslessness of a drafter on the packaged prompts."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from .compare import Comparison, compare

PROMPTS = Path(__file__).resolve().parent / "prompts"


def read_questions(task: str, count: int) -> list[str]:
    """The first `count` questions (first turns) of a packaged task: gsm8k, humaneval or mt_bench."""
    with (PROMPTS / f"{task}.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line)["turns"][0] for line in lines][:count]


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
