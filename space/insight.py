"""The insight tab: where drafts are accepted, where the time goes, and one block step by step; `tree.py` shows a round's tree."""

from __future__ import annotations

from collections.abc import Sequence

from ..drafting.proposal import DRAFTER
from ..evaluation.methods import Models
from ..evaluation.metrics import accepted_lengths
from ..evaluation.watch import Call
from ..generation.statistics import Round
from .block import Block, Choice, Place
from .compare import Comparison
from .limits import Ask
from .markup import text, visible
from .trace import Trace

STAGES = {
    "setup": "setting up",
    "prefill": "reading the prompt",
    "verify": "the target's forwards",
    "draft": "drafting backbone",
    "head": "causal head",
    "overhead": "the rest",
}
NOTHING = '<p class="note">Run a comparison first: this page explains the run you see.</p>'


def bars(caption: str, head: tuple[str, str], rows: Sequence[tuple[str, float, str]]) -> str:
    """A bar chart that is a table: rows of (name, share of the longest bar, value)."""
    lines = "".join(
        f'<tr><th scope="row">{text(name)}</th><td><i style="width:{80 * share:.1f}%"></i><b>{text(value)}</b></td></tr>'
        for name, share, value in rows
    )
    columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    return f'<table class="bars"><caption>{text(caption)}</caption><thead><tr>{columns}</tr></thead><tbody>{lines}</tbody></table>'


def positions(trace: Trace) -> str:
    """Share of rounds that accepted at least k drafts."""
    rows = [(str(k), share, f"{share:.0%}") for k, share in enumerate(trace.acceptance_by_position, 1)]
    return bars("Accepted, by how far ahead", ("ahead", "of the rounds that drafted so far"), rows)


def lengths(call: Call) -> str:
    """How many rounds accepted 0, 1, 2 … drafts."""
    counts = accepted_lengths(call.advanced)
    most = max(counts, default=0) or 1
    rows = [(str(n), count / most, str(count)) for n, count in enumerate(counts)]
    return bars("Drafts accepted in a round", ("accepted", "rounds"), rows)


def times(name: str, call: Call) -> str:
    """Where a call's seconds went, as one stacked bar and its list."""
    whole = call.seconds or 1.0
    parts = [(stage, getattr(call, stage)) for stage in STAGES]
    stack = "".join(
        f'<i class="stage-{stage}" style="width:{100 * s / whole:.2f}%"></i>' for stage, s in parts if s > 0
    )
    items = "".join(
        f'<li><i class="stage-{stage}"></i>{text(STAGES[stage])} <b>{1000 * s:.0f} ms</b></li>'
        for stage, s in parts
        if s > 0.0005
    )
    return (
        f'<figure class="times"><figcaption>{text(name)}: {call.seconds:.2f} s</figcaption>'
        f'<div class="stack" aria-hidden="true">{stack}</div><ul>{items}</ul></figure>'
    )


def insight(now: Comparison) -> str:
    """All of it but the block. A method that was not finished has nothing to tell."""
    if now.plain.call is None or now.ours.call is None:
        return NOTHING
    ours = now.ours.call
    name = "Domino" if now.ask.head else "DFlash"
    return (
        f'<div class="insight"><div class="card">{positions(now.ours)}</div><div class="card">{lengths(ours)}</div>'
        f'<div class="card wide"><h4>Where the time goes</h4>{times("Plain generate", now.plain.call)}{times(name, ours)}</div></div>'
    )


def _choice(models: Models, choice: Choice) -> str:
    return f"<code>{visible(models.tokenizer.decode([choice.id]))}</code> <small>{choice.chance:.2f}</small>"


def _row(models: Models, number: int, place: Place, block: Block) -> str:
    if number <= block.accepted:
        kind, mark = "yes", "✓ accepted"
    elif number == block.accepted + 1:
        kind, mark = "no", f"✗ the target says {visible(models.tokenizer.decode([block.bonus.id]))}"
    else:
        kind, mark = "late", "not reached"
    changed = place.corrected.id != place.base.id
    corrected = _choice(models, place.corrected) if place.corrects else "<small>head not used here</small>"
    target = _choice(models, place.target) if kind != "late" else "<small>–</small>"
    return (
        f'<tr class="{kind}{" changed" if changed else ""}"><th scope="row">{number}</th><td>{_choice(models, place.base)}</td>'
        f"<td>{corrected}</td><td>{target}</td><td>{mark}</td></tr>"
    )


def block_note(ask: Ask, told: Round | None) -> str:
    """How the table's block differs from what was drafted in the run's round."""
    if not ask.head:
        return "The run had the head off: its drafts were the base guesses, and the head's column is what it would have made of them."
    if told is not None and DRAFTER not in told.tree.source:
        return "In this round no token of the drafter was put to the target: this is what it would have drafted."
    if ask.temperature > 0:
        return "Computed again, without branches, with the likeliest tokens; the run drew its tokens."
    return "Computed again, without branches: the likeliest draft of each place."


def block_table(models: Models, block: Block, note: str) -> str:
    """The block, one place a row; `note` stands before it."""
    rows = "".join(_row(models, number, place, block) for number, place in enumerate(block.places, 1))
    anchor = visible(models.tokenizer.decode([block.anchor]))
    changed = sum(p.base.id != p.corrected.id for p in block.places)
    base_run = next((n for n, p in enumerate(block.places) if p.base.id != p.target.id), len(block.places))
    saved = block.accepted - min(base_run, block.accepted)
    words = (
        f"Here the head changed {changed} of {len(block.places)} guesses, {block.accepted} drafts were accepted"
        + (f", {saved} more than the base guesses would have got" if saved else "")
        + "."
    )
    return (
        f'<div class="block"><h4>The block: base guess, head, target</h4><ol class="idea"><li><b>Base guess.</b> A small backbone reads the target\'s features and proposes the whole '
        "block in one forward. No place knows what its neighbours became, so far places repeat or contradict them.</li>"
        "<li><b>Corrected.</b> Domino's head walks along: a GRU reads each draft that was chosen and a low-rank term adds to the next "
        "place's logits. It costs next to nothing, since the backbone and the vocabulary's matrix are not run again.</li>"
        "<li><b>Target.</b> One forward of the big model checks all places. Drafts count up to the first it disagrees with, and its own "
        "token there comes for free: the bonus token.</li></ol>"
        f"<p>The last token before the block is <code>{anchor}</code>. {text(words)} Small numbers are probabilities. {text(note)}</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="One block"><table class="steps"><thead><tr><th scope="col">place</th>'
        '<th scope="col">base guess</th><th scope="col">corrected by the head</th><th scope="col">target\'s choice</th>'
        f'<th scope="col">outcome</th></tr></thead><tbody>{rows}</tbody></table></div></div>'
    )
