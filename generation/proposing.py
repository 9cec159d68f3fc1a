"""One round's proposal: the drafter's nodes and lookup's, as many as pay."""

import time

from torch import Tensor

from .. drafting.calibration import Calibration  # fmt: skip  # isort: skip
from .. drafting.drafter import Picking, Wanted  # fmt: skip  # isort: skip
from .. drafting.lookup import Lookup, merge  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal, Tree  # fmt: skip  # isort: skip
from . budget import Budget, Choice  # fmt: skip  # isort: skip
from . learnt import Learnt  # fmt: skip  # isort: skip
from . opening import Sides  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip

LEAST = 0.005  # reach below which a node is not worth its bookkeeping, whatever it costs
WIDEST = 32  # nodes that the automatic budget asks the drafter for


class Proposer:
    """Decides what is put to the target, and learns from what came of it.

    Args:
        settings: of the call. rows: its texts. sides: its models. learnt: what calls of this kind know, and are told. picking: how the
            drafter picks. limit: nodes that the caller allows, None says nothing.
    """

    def __init__(
        self, settings: EngineSettings, rows: Rows, sides: Sides, learnt: Learnt, picking: Picking, limit: int | None
    ) -> None:
        self.rows, self.session, self.learnt, self.picking = rows, sides.session, learnt, picking
        self.auto = settings.budget == "auto" and sides.timed
        untimed = sides.deepest if isinstance(settings.budget, str) else settings.budget
        most = WIDEST if self.auto else untimed
        self.most = most if limit is None else min(most, limit)
        self.least = LEAST if self.auto else 0.0  # a fixed budget is spent
        tree = settings.shape == "tree" or settings.shape == "auto" and sides.target.device.type == "cpu"
        self.chain = not tree or sides.graphs is not None
        # its branches make trees, which never ran elsewhere
        branches = sides.target.device.type == "cpu" or settings.shape == "tree"
        self.looks = settings.lookup and branches and sides.graphs is None and self.most > 0
        self.drafter = self.most > 0  # whether it is ever asked
        self.memory = learnt.memory
        self.memory.hold(settings.lookup_memory)
        self.lookups: dict[int, Lookup] = {}
        self.candidates: list[Tree] = []
        self.probes = False  # whether this round is made to see what it costs

    @property
    def calibration(self) -> Calibration:
        return self.learnt.calibration

    @property
    def budget(self) -> Budget:
        return self.learnt.budget(len(self.rows.alive))

    def propose(self, anchors: Tensor, depths: list[int]) -> Proposal:
        """Trees below the anchors [R, 1], no deeper than each row has room for."""
        nothing = [Tree() for _ in depths]
        self.candidates = self._found(depths) if self.looks else nothing
        if self.most == 0 or max(depths) == 0:
            return Proposal(nothing)
        most, asks, floor = self.most, True, self.least
        if self.auto:
            most, asks, floor = self._decide()
        if not asks:
            return Proposal([_best(tree, most) for tree in self.candidates])
        return (
            self._draw(anchors, depths, most, floor)
            if self.picking.samples
            else self._grow(anchors, depths, most, floor)
        )

    def _decide(self) -> tuple[int, bool, float]:
        """Nodes allowed, whether the drafter is asked, and the reach below which its nodes are not worth making."""
        costs = self.budget.costs
        probe = costs.unknown(self.most)
        self.probes = probe is not None
        if probe is not None:
            costs.ask(probe)
            return probe, probe > 0, LEAST
        without = self.budget.choose(_falling(self.candidates), 0.0, self.most)
        if not self.budget.drafts_now(without):
            return without.nodes, False, LEAST
        return self.most, True, max(self.budget.floor(len(self.candidates), self.most), LEAST)

    def _grow(self, anchors: Tensor, depths: list[int], most: int, floor: float) -> Proposal:
        """The likeliest nodes, then the best of them and lookup's."""
        began = time.perf_counter()
        wanted = Wanted(most, depths, floor, self.chain, self.calibration)
        proposal = self.session.propose(anchors, wanted, self.picking)
        trees = zip(proposal.trees, self.candidates, strict=True)
        self.candidates = [merge(own, found) if found.tokens else own for own, found in trees]
        most = self._size(_falling(self.candidates), time.perf_counter() - began, most)
        return Proposal([_best(tree, most) for tree in self.candidates], proposal.law)

    def _draw(self, anchors: Tensor, depths: list[int], most: int, floor: float) -> Proposal:
        """Drawn nodes: how many, of whom, is decided by their reach before any is drawn; lookup's are chosen, and tested after them."""
        began, found = time.perf_counter(), self.candidates
        looked: list[int] = []  # of lookup's nodes, how many are verified

        def cut(reaches: list[list[float]]) -> list[int]:
            both = [sorted(own + tree.reach, reverse=True) for own, tree in zip(reaches, found, strict=True)]
            spent = max(time.perf_counter() - began, self.budget.drafting)
            size = self._size(both, spent, most)
            drawn = [_share(own, tree.reach, size) for own, tree in zip(reaches, found, strict=True)]
            looked[:] = [size - own for own in drawn]
            return drawn

        wanted = Wanted(most, depths, floor, self.chain, self.calibration, cut)
        proposal = self.session.propose(anchors, wanted, self.picking)
        self.budget.took(time.perf_counter() - began)
        if not looked:  # a chain of one launch asks nobody
            cut([tree.reach for tree in proposal.trees])
        kept = [tree.take(_largest(tree, count)) for tree, count in zip(found, looked, strict=True)]
        trees = [merge(own, more) if more.tokens else own for own, more in zip(proposal.trees, kept, strict=True)]
        pairs = zip(proposal.trees, found, strict=True)
        self.candidates = [merge(own, more) if more.tokens else own for own, more in pairs]
        return Proposal(trees, proposal.law)

    def _size(self, reaches: list[list[float]], spent: float, most: int) -> int:
        """Nodes a row that are verified."""
        if not self.auto or self.probes:
            return most
        choice: Choice = self.budget.choose(reaches, spent, most)
        self.budget.drafted(choice)
        return choice.nodes

    def _found(self, depths: list[int]) -> list[Tree]:
        rows, trees = self.rows, list[Tree]()
        for row, depth in zip(rows.alive, depths, strict=True):
            if row not in self.lookups:
                start = rows.input_ids.shape[1]
                prompt = rows.prompts[row].tolist() + rows.text[row, start : rows.ends[row]].tolist()
                room = len(prompt) + rows.max_length - rows.ends[row]
                self.lookups[row] = Lookup(prompt, room, self.memory)
            trees.append(self.lookups[row].tree(self.calibration, min(depth, self.most), self.least, rows.eos))
        return trees

    def observe(self, paths: list[list[int]], said: list[list[int]]) -> None:
        """What the target made of the candidates, verified or not: its tokens say which were right.

        Args:
            said: tokens of each row, the one that follows the path included.
        """
        for row, tokens in zip(self.rows.alive, said, strict=True):
            if row in self.lookups:
                self.lookups[row].say(tokens)
        for tree, path, tokens in zip(self.candidates, paths, said, strict=True):
            below, slot = tree.children(), 0
            for place, token in enumerate(tokens):
                kept = path[place] if place < len(path) else None
                self._learn(tree, below[slot], token, kept)
                slot = next((node + 1 for node in below[slot] if tree.tokens[node] == token), 0)
                if slot == 0:
                    break

    def _learn(self, tree: Tree, nodes: list[int], token: int, kept: int | None) -> None:
        """The children of one place. Of those that were drawn only what was tested says something, in the order of the draw."""
        for node in sorted((n for n in nodes if tree.drawn[n] >= 0), key=lambda n: tree.drawn[n]):
            if tree.cells[node][0] >= 0:
                self.calibration.observe(tree.cells[node][0], kept is not None and tree.tokens[node] == token)
            if kept is not None and tree.tokens[node] == token:
                break
        for node in nodes:
            for cell in tree.cells[node][tree.drawn[node] >= 0 :]:
                if cell >= 0:
                    self.calibration.observe(cell, tree.tokens[node] == token)

    def remember(self) -> None:
        """The texts are over."""
        rows = self.rows
        start = rows.input_ids.shape[1]
        for row, prompt in enumerate(rows.prompts):
            self.memory.add(prompt.tolist() + rows.text[row, start : rows.ends[row]].tolist())


def _falling(trees: list[Tree]) -> list[list[float]]:
    return [sorted(tree.reach, reverse=True) for tree in trees]


def _share(own: list[float], other: list[float], size: int) -> int:
    """How many of the `size` largest reaches are the drafter's own; of equals they go first."""
    both = sorted([(-reach, False) for reach in own] + [(-reach, True) for reach in other])
    return sum(not others for _, others in both[:size])


def _largest(tree: Tree, most: int) -> list[int]:
    """The nodes of largest reach, as they stand."""
    # of equal reach the earlier, and parents stand before children: so what is left is a tree
    return sorted(sorted(range(len(tree)), key=lambda node: -tree.reach[node])[:most])


def _best(tree: Tree, most: int) -> Tree:
    """The nodes of largest reach, the likeliest path first."""
    return tree.take(tree.spine_first(_largest(tree, most)))
