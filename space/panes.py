"""The two panes and the verdict above them, as HTML."""

from __future__ import annotations

from itertools import groupby

from .compare import Comparison
from .markup import text
from .trace import Token, Trace

PLAIN_TITLE, DOMINO_TITLE, DFLASH_TITLE = "Plain generate", "Domino", "DFlash (Domino, head off)"
PLAIN_ABOUT = "one token per forward of the model"
OURS_ABOUT = "several drafted tokens checked per forward"
CALL_HALTED = {"stopped": "Stopped", "time": "Time limit reached"}


def tile(name: str, value: str, label: str, hint: str) -> str:
    """A figure with its label; `name` is what the replay finds it by."""
    return (
        f'<div class="tile" title="{text(hint)}"><dt>{text(label)}</dt><dd data-tile="{name}">{text(value)}</dd></div>'
    )


def tiles(trace: Trace) -> str:
    """The four live figures."""
    started = bool(trace.tokens)
    return "".join(
        (
            tile("rate", f"{trace.tokens_per_second:.1f}" if started else "–", "tokens/s", "of the whole call"),
            tile("seconds", f"{trace.seconds:.2f} s" if started else "–", "elapsed", "since generate was called"),
            tile("rounds", str(trace.rounds) if started else "–", "rounds", "forwards of the target after the prompt"),
            tile("tau", f"{trace.tau:.2f}" if trace.rounds else "–", "τ", "tokens per round"),
        )
    )


def span(token: Token, drafted: bool) -> str:
    """A token; what hovering tells is its title, and `data-s` is when it came."""
    if token.round == 0:
        kind, hint = "first", "first token, from reading the prompt"
    elif token.bonus:
        kind, hint = "bonus", f"round {token.round} · the target's own token"
    else:
        chance = "" if token.chance is None else f" · chance of being kept {token.chance:.2f}"
        kind, by = ("kept found", "found by lookup") if token.lookup else ("kept", "drafted")
        hint = f"round {token.round} · token {token.place}, {by} and kept{chance}"
    attributes = f' class="t {kind}" title="{text(hint)}"' if drafted else ' class="t"'
    return f'<span{attributes} data-s="{token.seconds:.3f}" data-r="{token.round}">{text(token.text)}</span>'


def body(trace: Trace, drafted: bool) -> str:
    """All tokens; a round's stand together, so that blocks can be seen."""
    if not drafted:
        return "".join(span(token, drafted) for token in trace.tokens)
    rounds = groupby(trace.tokens, key=lambda token: token.round)
    return "".join(
        f'<span class="round {"odd" if number % 2 else "even"}">{"".join(span(t, True) for t in tokens)}</span>'
        for number, tokens in rounds
    )


LEGEND = (
    '<p class="legend"><span class="round odd"><span class="t kept">drafted and kept</span></span>'
    '<span class="round odd"><span class="t kept found">found by lookup and kept</span></span>'
    '<span class="round odd"><span class="t bonus">the model\'s own</span></span>'
    "<span>A round is a run of kept tokens and one of the model's own. Hover a token for its chance.</span></p>"
)


def legend(trace: Trace) -> str:
    """What the colours mean, and how many tokens lookup found, where the loop tells it."""
    if not trace.told:
        return LEGEND
    found, said = (
        f'<b data-tile="{name}">{n}</b>' for name, n in (("found", trace.found_by_lookup), ("said", len(trace.tokens)))
    )
    return (
        f'{LEGEND}<p class="legend lookup"><span>{found} of {said} tokens were found by lookup: they followed the same words earlier in '
        "the prompt or the answer, and the drafter had not proposed them.</span></p>"
    )


def pane(trace: Trace, title: str, about: str, drafted: bool, live: bool, note: str, most: int) -> str:
    """One side.

    Args:
        most: tokens at which the bar is full. note: stands where there is no text yet.
    """
    share = min(100 * len(trace.tokens) / most, 100) if most else 0
    words = body(trace, drafted) or f'<span class="note">{text(note)}</span>'
    return (
        f'<section class="pane {"ours" if drafted else "plain"}{" live" if live else ""}" aria-label="{text(title)}" '
        f'data-seconds="{trace.seconds:.3f}" data-tokens="{len(trace.tokens)}">'
        f"<header><h3>{text(title)}</h3><p>{text(about)}</p></header>"
        f'<dl class="tiles">{tiles(trace)}</dl>'
        f'<div class="bar" aria-hidden="true"><i style="width:{share:.1f}%"></i></div>'
        f'<div class="words" dir="auto" tabindex="0" role="region" aria-label="{text(title)}: answer">{words}</div>'
        f"{legend(trace) if drafted else ''}</section>"
    )


def panes(now: Comparison) -> tuple[str, str]:
    """Left and right."""
    over = now.phase in ("done", "stopped", "time")
    counts = len(now.plain.tokens), len(now.ours.tokens)
    most = max(counts) if over else int(now.ask.max_new_tokens)
    title = DOMINO_TITLE if now.ask.head else DFLASH_TITLE
    left_note = "Loading the models …" if now.phase == "loading" else "Reading the prompt …"
    waits = "Its turn comes next: two models at once would slow each other."
    right_note = "Reading the prompt …" if now.phase == "ours" else waits
    if over:
        left_note = right_note = "Nothing was generated."
    return (
        pane(now.plain, PLAIN_TITLE, PLAIN_ABOUT, False, now.phase == "plain", left_note, most),
        pane(now.ours, title, OURS_ABOUT, True, now.phase == "ours", right_note, most),
    )


def empty() -> tuple[str, str]:
    """Before the first request."""
    from .pieces import Pieces

    nothing = Trace("", Pieces(None))
    note = "Press Run: this side shows the answer as it is written."
    return (
        pane(nothing, PLAIN_TITLE, PLAIN_ABOUT, False, False, note, 0),
        pane(nothing, DOMINO_TITLE, OURS_ABOUT, True, False, note, 0),
    )
