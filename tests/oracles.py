"""Drafters that know the answers: trees with the right path in them, at the front or hidden, or with none of it."""

import random

from domino import DominoModel, generate
from domino.drafting.domino import DominoSession
from domino.drafting.proposal import DRAFTER, Proposal, Tree
from tiny import VOCAB, make_draft

DEPTH = 6  # of the trees
JUNK = range(3, VOCAB - 1)


class OracleSession(DominoSession):
    """A drafter's session whose trees come from the answers; it counts what it reads, so it knows where each row is."""

    def __init__(self, draft, target, rows, device, *settings, **named):
        super().__init__(draft, target, rows, device, *settings, **named)
        self.kind, self.dice, self.answers = draft.kind, random.Random(draft.seed), draft.answers
        self.rows, self.ends = list(range(rows)), [0] * rows

    def add(self, features, counts):
        super().add(features, counts)
        self.ends = [end + count for end, count in zip(self.ends, counts, strict=True)]

    def keep(self, rows):
        super().keep(rows)
        self.rows, self.ends = [self.rows[row] for row in rows], [self.ends[row] for row in rows]

    def propose(self, anchors, wanted, picking):
        self.block(anchors, 1)  # its context grows as any other's
        said = [self.answers[row][end + 1 :] for row, end in zip(self.rows, self.ends, strict=True)]
        for row, end, anchor in zip(self.rows, self.ends, anchors[:, 0].tolist(), strict=True):
            assert self.answers[row][end] == anchor, "the session was not told all of the text"
        return Proposal([self.tree(row, min(depth, DEPTH)) for row, depth in zip(said, wanted.depths, strict=True)])

    def tree(self, right: list[int], depth: int) -> Tree:
        """Below the anchor of a row whose text goes on like this."""
        right = right[:depth] + self.dice.choices(JUNK, k=max(depth - len(right), 0))  # beyond an end token anything
        tree = Tree()
        if self.kind != "right":
            self.wrong(tree, -1, right, depth, 0.9)
        if self.kind != "wrong":
            above = -1
            for place, token in enumerate(right):
                beside = above
                above = tree.add(token, above, 1.0 if self.kind == "right" else 0.5, DRAFTER, -1)
                if place < 3:
                    self.wrong(tree, beside, right[place:], 1, 0.4)
        return tree

    def wrong(self, tree: Tree, above: int, right: list[int], depth: int, reach: float) -> None:
        """A branch that is wrong at once, and right from then on, which must not help it."""
        if not depth:
            return
        taken = {token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == above}
        first = self.dice.choice([token for token in JUNK if token != right[0] and token not in taken])
        for token in [first, *right[1:depth]]:
            above = tree.add(token, above, reach, DRAFTER, -1)


class Oracle(DominoModel):
    """Its `answers`, {row: tokens without padding}, and its `kind` are set from outside:

    right: the right path first, wrong tokens beside it. hidden: a wrong path stands before it and looks better. wrong: none of it.
    """

    kind, seed, answers = "right", 0, None

    def open(self, target, rows, device, *settings, **named):
        return OracleSession(self, target, rows, device, *settings, **named)


def oracle(kind: str, seed: int = 0, **config):
    """A drafter of this kind; "random" is a plain one."""
    draft = make_draft(seed + 1, DominoModel if kind == "random" else Oracle, **config)
    object.__setattr__(draft, "kind", kind)
    object.__setattr__(draft, "seed", seed)
    return draft


def told(draft, plain, mask) -> None:
    """The answers are plain decoding's, `mask` [R, P] that of the prompts."""
    start = mask.shape[1]
    answers = {
        row: ids[:start][own.bool()].tolist() + ids[start:].tolist()
        for row, (ids, own) in enumerate(zip(plain, mask, strict=True))
    }
    object.__setattr__(draft, "answers", answers)


def both(target, draft, ids, mask, plain=None, **ours):
    """Plain decoding's text and ours; `plain` are options of both."""
    options = {"attention_mask": mask, "do_sample": False, **(plain or {})}
    text = target.generate(ids, **options)
    told(draft, text, mask)
    return text, generate(target, draft, ids, **options, **ours)
