"""`domino demo`: one question, streamed, then plain `generate` against Domino."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from transformers import TextStreamer

from ..generation.statistics import DraftStatistics
from .compare import Sample, answer_twice, encode

QUESTION = (
    "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?\n"
    "Please reason step by step, and put your final answer within \\boxed{}."
)
REPEATS = 3


def demo(target, draft, tokenizer, question: str, max_new_tokens: int) -> Sample:
    """Stream Domino's answer, then time both, alternately; returns the median run by speedup."""
    console = Console()
    inputs = encode(tokenizer, question, target.device)
    options = {"max_new_tokens": max_new_tokens, "do_sample": False}
    console.print(question + "\n", style="bold", markup=False, highlight=False)
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    target.generate(**inputs, assistant_model=draft, streamer=streamer, **options)  # also the warm-up

    console.print(f"\nMeasuring plain generate and Domino in turn, {REPEATS} times ...", highlight=False)
    runs = [answer_twice(target, draft, inputs, **options) for _ in range(REPEATS)]
    run = sorted(runs, key=lambda r: r.speedup)[REPEATS // 2]
    console.print(_table(run, draft))
    if not run.same:
        console.print(
            f"The texts part at a near tie of {target.dtype} arithmetic (logit gap {run.gap:.3f}); "
            "in float32 they are equal: add --dtype float32.",
            highlight=False,
        )
    return run


def _table(run: Sample, draft) -> Table:
    table = Table(title=f"{torch.get_num_threads()} threads, {draft.device}")
    for column in ("", "seconds", "tokens/s", "τ"):
        table.add_column(column, justify="right")
    tau = DraftStatistics(run.accepted).acceptance_length
    table.add_row("plain generate", f"{run.plain_s:.2f}", f"{run.plain_tokens / run.plain_s:.1f}", "1")
    table.add_row("Domino", f"{run.domino_s:.2f}", f"{run.domino_tokens / run.domino_s:.1f}", f"{tau:.2f}")
    table.caption = f"speedup {run.speedup:.2f}x, same text: {'yes' if run.same else 'no'}"
    return table
