"""The line above the answers: the speedup, and whether the texts are the same."""

from __future__ import annotations

import math

from .compare import Comparison
from .markup import text


def message(words: str, kind: str = "quiet") -> str:
    """A plain line; `kind` is "quiet", "busy" or "wrong"."""
    return f'<div class="verdict {kind}" role="status"><p>{text(words)}</p></div>'


def badge(now: Comparison, dtype: str) -> str:
    """Same text, or why not."""
    if now.ask.temperature > 0 and not now.ask.head:
        why = (
            "DFlash draws other random numbers than plain generate: the texts differ as two runs of the same model do. "
            "Both follow exactly the same distribution."
        )
        return f'<span class="badge even">same distribution</span><p class="why">{text(why)}</p>'
    found = now.compared
    if found is None:
        return ""
    if found.same:
        drawn = ", drawn with the same seed" if now.ask.temperature > 0 else ""
        why = f"All {len(now.ours.tokens)} tokens are those of plain generate{drawn}."
        return f'<span class="badge same">✓ same text</span><p class="why">{text(why)}</p>'
    gap = "" if found.gap is None or not math.isfinite(found.gap) else f" (two logits {found.gap:.3f} apart)"
    if found.own:
        why = (
            f"Without drafts, Domino's loop gives the same text. Plain generate rounds {dtype} numbers in another order: its text is the same "
            f"for {found.place} tokens, then a near tie falls the other way{gap}. In float32 all are equal."
        )
        return f'<span class="badge same">✓ same text with and without drafts</span><p class="why">{text(why)}</p>'
    why = (
        f"Same for {found.place} tokens, then a near tie of {dtype} arithmetic falls the other way{gap}: reading several tokens in one "
        "forward rounds differently from one by one. Both continuations are the model's own; in float32 the texts are equal."
    )
    return f'<span class="badge near">same up to a near tie</span><p class="why">{text(why)}</p>'


def verdict(now: Comparison, dtype: str, device: str) -> str:
    """What there is to say at this point of a request."""
    if now.phase == "loading":
        return message(f"Loading the models … {now.waited:.0f} s. The answer starts by itself.", "busy")
    if now.phase == "plain":
        return message(f"1 of 2: measuring plain generate on the {device}, alone …", "busy")
    if now.phase == "ours":
        name = "Domino" if now.ask.head else "DFlash"
        return message(f"2 of 2: measuring {name} on the {device}, alone …", "busy")
    if now.phase == "stopped":
        return message("Stopped. What was generated until then stays below.")
    if now.phase == "time":
        return message("An answer took longer than this page allows and was ended. Ask for fewer tokens.", "wrong")
    return _result(now, dtype, device)


def _result(now: Comparison, dtype: str, device: str) -> str:
    speedup = now.speedup or math.nan
    figure = f"{speedup:.2f}×" if math.isfinite(speedup) else "–"
    plain, ours = now.plain, now.ours
    words = (
        f"{plain.tokens_per_second:.1f} → {ours.tokens_per_second:.1f} tokens/s · {ours.rounds} rounds for {len(ours.tokens)} tokens, "
        f"plain needs {plain.rounds} for {len(plain.tokens)} · τ {ours.tau:.2f}"
        + (f" · {ours.found_by_lookup} of {len(ours.tokens)} tokens found by lookup" if ours.told else "")
    )
    how = f"Measured one after the other on the {device} in {dtype}; the panes replay both at the pace they really had."
    return (
        f'<div class="verdict result" role="status" data-speedup="{speedup:.4f}"><div class="figure"><strong>{figure}</strong>'
        f'<span>the speed of plain generate</span></div><div class="facts"><p>{text(words)}</p>'
        f'<div class="badges">{badge(now, dtype)}</div><p class="how">{text(how)}</p></div></div>'
    )
