"""The tree of a round in the Insight tab: what hangs on what, what a colour says, and text that stays text."""

from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from domino.drafting.proposal import DRAFTER, LOOKUP, Tree
from domino.generation.statistics import Round
from domino.space.insight import block_note
from domino.space.limits import Ask
from domino.space.observe import telling
from domino.space.tree import tree_view

WORDS = {
    1: " the",
    2: "<script>alert(1)</script>",
    3: '"onmouseover="alert(1)',
    4: "</code></li></ul>",
    5: "a\0b\u202e\n",
    6: "&lt;b&gt;",
    7: " end",
}
MODELS = SimpleNamespace(tokenizer=SimpleNamespace(decode=lambda ids: WORDS[ids[0]]))


class Outline(HTMLParser):
    """Nodes of the tree as (how deep in its lists, classes, text), in the order they stand; every other tag there is."""

    def __init__(self, markup: str):
        super().__init__()
        self.nodes, self.tags, self.open, self.titles = [], [], [], []
        self.feed(markup)
        assert self.open == []  # all that was opened was closed

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)
        assert all(name in {"class", "title", "tabindex", "role", "aria-label"} for name, _ in attrs), attrs
        if tag == "span" and "node" in (dict(attrs).get("class") or "").split() and "ul" in self.open:
            self.nodes.append((self.open.count("ul"), dict(attrs)["class"].removeprefix("node "), ""))
            self.titles.append(dict(attrs)["title"])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.nodes and "code" in self.open:
            depth, kind, text = self.nodes[-1]
            self.nodes[-1] = depth, kind, text + data


def grown() -> Tree:
    """Anchor 1; 2 and 3 below it, 4 and 6 below 3, 5 by lookup below 4."""
    tree = Tree()
    tree.add(2, -1, 0.5, DRAFTER, 0)
    tree.add(3, -1, 0.25, DRAFTER, 0)
    tree.add(4, 1, 0.2, DRAFTER, 0)
    tree.add(6, 1, 0.05, DRAFTER, 0)
    tree.add(5, 2, 0.05, LOOKUP, 0)
    return tree


def test_it_shows_what_hangs_on_what_and_stays_text():
    markup = tree_view(MODELS, Round(grown(), [1, 2, 4], [3, 4, 5, 7]), 9, 1)
    outline = Outline(markup)
    assert outline.nodes == [
        (1, "anchor", "␣the"),
        (2, "kept", WORDS[3]),
        (3, "kept", WORDS[4]),
        (4, "kept found", "a␀b\ufffd⏎"),
        (5, "bonus", "␣end"),
        (3, "missed", WORDS[6]),
        (2, "missed", WORDS[2]),
    ]
    assert "found by lookup, kept" in outline.titles
    assert set(outline.tags) == {"div", "h4", "p", "span", "i", "ul", "li", "code", "small"}
    assert "\0" not in markup
    assert "\u202e" not in markup
    for number in ("0.50", "0.25", "0.80", "0.20"):  # .5, .25, .2 / .25, .05 / .25
        assert f"<small>{number}</small>" in markup
    assert "5 tokens were put to the target in one forward, 1 of them found by lookup. It kept 3, and" in markup


@pytest.mark.parametrize(
    ("told", "words", "nodes"),
    [
        (Round(Tree(), [], [7]), "Nothing was drafted in this round", 2),
        (Round(grown(), [], [7]), "It kept 0, and the target added its own.", 7),
        (Round(grown(), [1, 2], [3, 4]), "It kept 2, and the answer ended there.", 6),
        (Round(grown().take([0]), [0], [2, 7]), "1 token was put to the target", 3),
    ],
)
def test_rounds_of_all_kinds(told, words, nodes):
    markup = tree_view(MODELS, told, 1, 1)
    assert words in markup
    found = Outline(markup).nodes
    assert len(found) == nodes
    assert sum(kind == "bonus" for _, kind, _ in found) == (len(told.tokens) > len(told.path))


def test_lookup_alone():
    tree = Tree()
    tree.add(2, -1, 0.5, LOOKUP, 0)
    told = Round(tree, [0], [2, 7])
    assert "1 token was put to the target in one forward, found by lookup. It kept 1," in tree_view(MODELS, told, 1, 1)
    assert "no token of the drafter" in block_note(Ask("w"), told)
    assert "no token of the drafter" not in block_note(Ask("w"), Round(grown(), [], [7]))


def test_the_round_that_shows_most_has_branches():
    straight = Round(grown().take([1, 2, 4]), [0, 1, 2], [3, 4, 5, 7])
    branched = Round(grown(), [0], [2, 7])
    assert telling(branched) > telling(straight) > telling(Round(Tree(), [], [7]))
