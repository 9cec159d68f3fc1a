"""Drafters that know the answers: trees with the right path in them, at the front or hidden, or with none of it."""

import random

from domino import DominoModel, generate
from domino.drafting.domino import DominoSession
from domino.drafting.proposal import DRAFTER, Proposal, Tree
from domino.generation.engine import kind
from domino.generation.learnt import Learnt, learnt
from domino.generation.settings import EngineSettings
from tiny import VOCAB, make_draft
from transformers import GenerationConfig

DEPTH = 6  # of the trees
FIRST, BESIDE = 15, 30  # cells of the calibration: of the path that is shown first, of the others
JUNK = range(3, VOCAB - 1)


class OracleSession(DominoSession):
    """A drafter's session whose trees come from the answers; it counts what it reads, so it knows where each row is."""

    def __init__(self, draft, target, rows, device, *settings, **named):
        super().__init__(draft, target, rows, device, *settings, **named)
        self.kind, self.dice, self.answers = draft.kind, random.Random(draft.seed), draft.answers
        self.rows, self.ends = list(range(rows)), [0] * rows
        self.chances = None

    def add(self, features, counts):
        super().add(features, counts)
        self.ends = [end + count for end, count in zip(self.ends, counts, strict=True)]

    def keep(self, rows):
        super().keep(rows)
        self.rows, self.ends = [self.rows[row] for row in rows], [self.ends[row] for row in rows]

    def propose(self, anchors, wanted, picking):
        self.block(anchors, 1)  # its context grows as any other's
        self.chances = wanted.calibration.chances if self.draft.learns else None
        said = [self.answers[row][end + 1 :] for row, end in zip(self.rows, self.ends, strict=True)]
        for row, end, anchor in zip(self.rows, self.ends, anchors[:, 0].tolist(), strict=True):
            assert self.answers[row][end] == anchor, "the session was not told all of the text"
        return Proposal([self.tree(row, min(depth, DEPTH)) for row, depth in zip(said, wanted.depths, strict=True)])

    def tree(self, right: list[int], depth: int) -> Tree:
        """Below the anchor of a row whose text goes on like this."""
        right = right[:depth] + self.dice.choices(JUNK, k=max(depth - len(right), 0))  # beyond an end token anything
        tree = Tree()
        if self.kind != "right":
            self.wrong(tree, -1, right, depth, 0.9, FIRST)
        if self.kind != "wrong":
            above = -1
            for place, token in enumerate(right):
                beside = above
                right_first = self.kind == "right"
                above = self.node(tree, token, above, 1.0 if right_first else 0.5, FIRST if right_first else BESIDE)
                if place < 3:
                    self.wrong(tree, beside, right[place:], 1, 0.4, BESIDE)
        return tree

    def wrong(self, tree: Tree, above: int, right: list[int], depth: int, reach: float, cell: int) -> None:
        """A branch that is wrong at once, and right from then on, which must not help it."""
        if not depth:
            return
        taken = {token for token, parent in zip(tree.tokens, tree.parents, strict=True) if parent == above}
        first = self.dice.choice([token for token in JUNK if token != right[0] and token not in taken])
        for token in [first, *right[1:depth]]:
            above = self.node(tree, token, above, reach, cell)

    def node(self, tree: Tree, token: int, above: int, reach: float, cell: int) -> int:
        """With this reach, or with the one that was learnt."""
        if self.chances is None:
            return tree.add(token, above, reach, DRAFTER, -1)
        before = tree.reach[above] if above >= 0 else 1.0
        return tree.add(token, above, before * float(self.chances[cell]), DRAFTER, cell)


class Oracle(DominoModel):
    """Its `answers`, {row: tokens without padding}, its `kind`, and whether it `learns` what its trees are worth are set from outside:

    right: the right path first, wrong tokens beside it. hidden: a wrong path stands before it and looks better. wrong: none of it.
    """

    kind, seed, answers, learns = "right", 0, None, False

    def open(self, target, rows, device, *settings, **named):
        return OracleSession(self, target, rows, device, *settings, **named)


def oracle(kind: str, seed: int = 0, learns: bool = False, **config):
    """A drafter of this kind; "random" is a plain one."""
    draft = make_draft(seed + 1, DominoModel if kind == "random" else Oracle, **config)
    object.__setattr__(draft, "kind", kind)
    object.__setattr__(draft, "seed", seed)
    object.__setattr__(draft, "learns", learns)
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


def taught(draft, target, do_sample: bool = False, **settings) -> Learnt:
    """What calls with these settings learnt, see `generation/learnt.py`."""
    return learnt(draft, target, *kind(EngineSettings(**settings), GenerationConfig(do_sample=do_sample)))
