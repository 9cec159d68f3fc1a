"""The tree of one round of the run, as nested lists: each token hangs on the one before it. style.css draws the branches."""

from __future__ import annotations

from ..evaluation.methods import Models
from ..generation.statistics import Round
from .markup import text, visible
from .observe import bonus, by_lookup, chance

UNTOLD = "This run went through transformers' own path, which tells of no trees: it drafts one chain, the base guesses in the table below."
IDEA = (
    "Each token hangs on the one before it: where the next token was not sure, several were put to the target. One forward reads them "
    "all, and each token sees only what it hangs on. Small numbers: the chance, estimated beforehand, that a token is kept once the one "
    "before it is."
)
LEGEND = (
    ("anchor", "last token so far"),
    ("kept", "drafted and kept"),
    ("kept found", "found by lookup alone and kept"),
    ("bonus", "the target's own"),
    ("missed", "drafted, not kept"),
    ("missed found", "found by lookup, not kept"),
)


def tokens(count: int) -> str:
    """In words: 1 token, 2 tokens."""
    return f"{count} token{'' if count == 1 else 's'}"


def words(told: Round) -> str:
    """What happened in the round, in a few sentences."""
    tree, kept = told.tree, told.path
    if not len(tree):
        return "Nothing was drafted in this round: the token is the target's own."
    found = sum(by_lookup(tree, node) for node in range(len(tree)))
    by = "" if not found else ", found by lookup" if found == len(tree) else f", {found} of them found by lookup"
    own = ", and the target added its own." if bonus(told) is not None else ", and the answer ended there."
    return f"{tokens(len(tree))} {'was' if len(tree) == 1 else 'were'} put to the target in one forward{by}. It kept {len(kept)}{own}"


class Picture:
    """The nested lists of one round.

    Args:
        models: whose tokenizer spells the tokens. anchor: the last token before the round.
    """

    def __init__(self, models: Models, told: Round, anchor: int):
        self.models, self.told, self.anchor = models, told, anchor
        self.kept, self.below = set(told.path), told.tree.children()

    def label(self, token: int, kind: str, small: str, spoken: str) -> str:
        """A token; `spoken` is what its colour says."""
        number = f"<small>{text(small)}</small>" if small else ""
        shown = visible(self.models.tokenizer.decode([token]))
        hint = f'<span class="spoken">, {text(spoken)}</span>'
        return f'<span class="node {kind}" title="{text(spoken)}"><code>{shown}</code>{number}{hint}</span>'

    def node(self, node: int) -> str:
        """One drafted token with all that hangs on it."""
        tree = self.told.tree
        likely, found = chance(tree, node), by_lookup(tree, node)
        kind = ("kept" if node in self.kept else "missed") + (" found" if found else "")
        spoken = ("found by lookup" if found else "drafted") + (", kept" if node in self.kept else ", not kept")
        small = "" if likely is None else f"{likely:.2f}"
        return self.label(tree.tokens[node], kind, small, spoken) + self.children(node)

    def children(self, above: int) -> str:
        """What hangs on a node, -1 the anchor; the kept path comes first and ends with the bonus token."""
        nodes = sorted(self.below[above + 1], key=lambda node: node not in self.kept)
        items = [f"<li>{self.node(node)}</li>" for node in nodes]
        last, own = self.told.path[-1] if self.told.path else -1, bonus(self.told)
        if above == last and own is not None:
            items.insert(0, f"<li>{self.label(own, 'bonus', '', 'the bonus token')}</li>")
        return f"<ul>{''.join(items)}</ul>" if items else ""

    def html(self) -> str:
        first = self.label(self.anchor, "anchor", "", "the last token so far, the anchor")
        return f'<ul class="tree"><li>{first}{self.children(-1)}</li></ul>'


def tree_view(models: Models, told: Round, number: int, anchor: int) -> str:
    """The round as sentences, legend and tree."""
    legend = "".join(f'<span><i class="node {kind}"></i>{text(name)}</span>' for kind, name in LEGEND)
    picture = Picture(models, told, anchor).html()
    return (
        f'<div class="card round-tree"><h4>Round {number}: the tree</h4><p>{text(words(told))} {text(IDEA)}</p>'
        f'<p class="legend">{legend}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="The tree of round {number}">{picture}</div></div>'
    )
