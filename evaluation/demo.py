"""`domino demo`: one question, streamed, then plain `generate`, Domino without drafts and Domino, timed."""

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
WITHOUT, DOMINO = "engine-plain", "domino"
NAMES = {PLAIN: "plain generate", WITHOUT: "Domino's loop without drafts", DOMINO: "Domino"}


def demo(models: Models, question: str, max_new_tokens: int) -> Cell:
    """Stream Domino's answer, then time both, alternately; returns the figures of Domino's runs."""
    console, target = Console(), models.target
    inputs = encode(models.tokenizer, question, target.device)
    console.print(question + "\n", style="bold", markup=False, highlight=False)
    streamer = TextStreamer(models.tokenizer, skip_prompt=True, skip_special_tokens=True)
    target.generate(
        **inputs, assistant_model=models.draft, streamer=streamer, **decoding(0, max_new_tokens)
    )  # also the warm-up

    console.print(
        f"\nMeasuring plain generate, Domino without drafts and Domino in turn, {REPEATS} times ...", highlight=False
    )
    found = answer(
        models, {name: METHODS[name] for name in NAMES}, Question("demo", [question]), 0, max_new_tokens, REPEATS, 0
    )
    turns = {name: turn for name, (turn,) in found.items()}
    plain = turns[PLAIN].runs
    cells = {
        name: Cell("", "", 0, name, turn.runs, plain, [question] * REPEATS, [bool(turn.same)], [], [])
        for name, turn in turns.items()
    }
    console.print(_table(cells, turns[DOMINO].text == turns[WITHOUT].text))
    ours = turns[DOMINO]
    if not ours.same:
        console.print(
            f"Plain generate's text differs from a near tie on (logit gap {ours.gap:.3f}): it rounds {target.dtype} numbers "
            "in another order. In float32 the texts are equal: add --dtype float32.",
            highlight=False,
        )
    return cells[DOMINO]


def _table(cells: dict[str, Cell], same: bool) -> Table:
    table = Table(title=f"{torch.get_num_threads()} threads")
    for column in ("", "seconds", "tokens/s", "τ"):
        table.add_column(column, justify="right")
    for name, cell in cells.items():
        seconds = sum(call.seconds for call in cell.calls) / len(cell.calls)
        table.add_row(NAMES[name], f"{seconds:.2f}", f"{cell.tokens_per_second:.1f}", f"{cell.tau:.2f}")
    words = {True: "yes", False: "no"}
    domino = cells[DOMINO]
    table.caption = (
        f"speedup {domino.median_speedup:.2f}x; same text as without drafts: {words[same]}, "
        f"as plain generate: {words[domino.same[0]]}"
    )
    return table
