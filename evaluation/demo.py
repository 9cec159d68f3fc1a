"""`domino demo`: one question, streamed, then plain `generate` against Domino."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from transformers import TextStreamer

from .answering import answer, decoding, encode
from .methods import METHODS, PLAIN, Models
from .summary import Cell
from .tasks import Question

QUESTION = (
    "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total does it take?\n"
    "Please reason step by step, and put your final answer within \\boxed{}."
)
REPEATS = 3
METHOD = "domino"


def demo(models: Models, question: str, max_new_tokens: int) -> Cell:
    """Stream Domino's answer, then time both, alternately; returns the figures of Domino's runs."""
    console, target = Console(), models.target
    inputs = encode(models.tokenizer, question, target.device)
    console.print(question + "\n", style="bold", markup=False, highlight=False)
    streamer = TextStreamer(models.tokenizer, skip_prompt=True, skip_special_tokens=True)
    target.generate(
        **inputs, assistant_model=models.draft, streamer=streamer, **decoding(0, max_new_tokens)
    )  # also the warm-up

    console.print(f"\nMeasuring plain generate and Domino in turn, {REPEATS} times ...", highlight=False)
    methods = {name: METHODS[name] for name in (PLAIN, METHOD)}
    found = answer(models, methods, Question("demo", [question]), 0, max_new_tokens, REPEATS, 0)
    (ours,), (plain,) = found[METHOD], found[PLAIN]
    asked = [question] * REPEATS
    cell = Cell("", "", 0, METHOD, ours.runs, plain.runs, asked, [bool(ours.same)], [], [])
    console.print(_table(cell, Cell("", "", 0, PLAIN, plain.runs, plain.runs, asked, [], [], [])))
    if not ours.same:
        console.print(
            f"The texts part at a near tie of {target.dtype} arithmetic (logit gap {ours.gap:.3f}); "
            "in float32 they are equal: add --dtype float32.",
            highlight=False,
        )
    return cell


def _table(domino: Cell, plain: Cell) -> Table:
    table = Table(title=f"{torch.get_num_threads()} threads")
    for column in ("", "seconds", "tokens/s", "τ"):
        table.add_column(column, justify="right")
    for name, cell in (("plain generate", plain), ("Domino", domino)):
        seconds = sum(call.seconds for call in cell.calls) / len(cell.calls)
        table.add_row(name, f"{seconds:.2f}", f"{cell.tokens_per_second:.1f}", f"{cell.tau:.2f}")
    table.caption = f"speedup {domino.median_speedup:.2f}x, same text: {'yes' if domino.same[0] else 'no'}"
    return table
