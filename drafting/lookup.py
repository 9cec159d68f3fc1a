"""Drafts without a model: what followed the last tokens when they were said before (prompt lookup).

A text is searched for the longest earlier place that ends as it does now; what came after that place is drafted, and what came after
the latest other place with another continuation, too. Nothing is trained; how far to trust a match is learnt (`calibration.py`).
"""

import numpy as np

from . calibration import MATCHES, Calibration  # fmt: skip  # isort: skip
from . proposal import LOOKUP, Tree  # fmt: skip  # isort: skip

LONGEST = 16  # tokens drafted after a match
PLACES = 64  # latest places that are looked at
BRANCHES = 2  # continuations that differ in their first token
APART = -1  # no token: nothing matches across it


class Memory:
    """Earlier answers of one drafter, the latest `most` tokens of them."""

    def __init__(self, most: int = 0) -> None:
        self.most, self.text = most, np.empty(0, dtype=np.int64)

    def hold(self, most: int) -> None:
        """From now on; what is more than that is forgotten."""
        self.most, self.text = most, self.text[len(self.text) - min(most, len(self.text)) :]

    def add(self, text: list[int]) -> None:
        """An answer with its prompt."""
        if self.most:
            self.text = np.concatenate([self.text, [APART], np.array(text, dtype=np.int64)])[-self.most :]


class Lookup:
    """The source for one row.

    Args:
        prompt: its tokens. most: tokens the text may have. memory: what else is searched.
    """

    def __init__(self, prompt: list[int], most: int, memory: Memory | None = None) -> None:
        before = np.empty(0, dtype=np.int64) if memory is None else np.append(memory.text, APART)
        self.text = np.empty(len(before) + max(most, len(prompt)), dtype=np.int64)
        self.text[: len(before)], self.end = before, len(before)
        self.begin = self.end  # of the row's own text
        self.say(prompt)

    def say(self, tokens: list[int]) -> None:
        """The text went on."""
        self.text[self.end : self.end + len(tokens)] = tokens
        self.end += len(tokens)

    def find(self) -> list[tuple[int, bool, list[int]]]:
        """Continuations: tokens that matched, whether all the longest matches went on alike, and the tokens that followed.

        Worked example: "a b c d a b c e a b": "a b" was said at 0 and at 4, and both times "c" followed. The later is one token of the
        text longer, so the draft is "c e a b", matched 2, alike.
        """
        text, end = self.text, self.end
        places = np.flatnonzero((text[: end - 1] == text[end - 1]) & (text[1:end] != APART))[-PLACES:]
        if not len(places) or text[end - 1] == APART:
            return []
        matched = np.ones(len(places), dtype=np.int64)
        for back in range(1, MATCHES):
            before = places - back
            same = (matched == back) & (before >= 0)
            if end - 1 - back < self.begin or not same.any():
                break
            matched[same] += text[before[same]] == text[end - 1 - back]
        order = np.lexsort((places, matched))[::-1]  # the longest, then the latest
        firsts = text[places + 1]
        longest = matched == matched[order[0]]
        alike = bool(longest.sum() > 1 and (firsts[longest] == firsts[order[0]]).all())
        found: list[tuple[int, bool, list[int]]] = []
        for at in order:
            first = int(firsts[at])
            if any(first == tokens[0] for _, _, tokens in found):
                continue
            following = text[places[at] + 1 : min(places[at] + 1 + LONGEST, end)]
            apart = np.flatnonzero(following == APART)
            following = following[: apart[0]] if len(apart) else following
            found.append((int(matched[at]), alike and not found, following.tolist()))
            if len(found) == BRANCHES:
                break
        return found

    def tree(self, calibration: Calibration, depth: int, floor: float, ends: set[int]) -> Tree:
        """The continuations as chosen nodes: each token that comes true makes the match one longer.

        Args:
            depth: at most. floor: nodes of less reach are left out. ends: tokens after which a text is over.
        """
        tree = Tree()
        for matched, alike, tokens in self.find():
            above, reach, left = -1, 1.0, 1.0 - sum(r for r, p in zip(tree.reach, tree.parents, strict=True) if p < 0)
            for place, token in enumerate(tokens[:depth]):
                chance, cell = calibration.lookup(matched + place, alike)
                reach *= min(chance, left) if place == 0 else chance
                if reach < floor:
                    break
                above = tree.add(token, above, reach, LOOKUP, cell)
                if token in ends:
                    break
        return tree


def merge(tree: Tree, other: Tree) -> Tree:
    """Both trees in one; a node of both has the larger reach, and counts for both in the calibration."""
    both = tree.take(list(range(len(tree))))
    known = {(parent, token): node for node, (parent, token) in enumerate(zip(both.parents, both.tokens, strict=True))}
    number = {-1: -1}
    for node in range(len(other)):
        key = number[other.parents[node]], other.tokens[node]
        if key in known:
            same = known[key]
            both.reach[same] = max(both.reach[same], other.reach[node])
            both.cells[same] += other.cells[node]
        else:
            same = known[key] = both.add(key[1], key[0], other.reach[node], other.source[node], other.cells[node][0])
        number[node] = same
    return both
