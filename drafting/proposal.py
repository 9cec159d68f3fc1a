"""A token tree a row: what is put to the target, whoever drafted it.

Letters: R rows, n nodes of the widest row. Slot 0 of a row is its anchor, the last token said; slot i + 1 is node i.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

DRAFTER, LOOKUP = 0, 1  # sources of nodes


@dataclass
class Tree:
    """One row's nodes, on the host; parents stand before children.

    Attributes:
        tokens: target ids. parents: node above, -1 is the anchor. reach: estimated chance that the path to the node is kept, known
            before the node was drawn. source: who made it, the drafter where several did. cells: of the calibration, one for each
            source that made it. drawn: its turn among the siblings that were sampled, -1 for nodes that were chosen.

    Worked example: anchor "the", nodes "cat" and "dog" below it and "sat" below "cat": tokens [cat, dog, sat], parents [-1, -1, 0],
    depths [1, 1, 2].
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    reach: list[float] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    cells: list[tuple[int, ...]] = field(default_factory=list)
    drawn: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, token: int, parent: int, reach: float, source: int, cell: int, drawn: int = -1) -> int:
        """Append a node; returns its number."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.reach.append(reach)
        self.source.append(source)
        self.cells.append((cell,))
        self.drawn.append(drawn)
        return len(self.tokens) - 1

    def depths(self) -> list[int]:
        """1 for children of the anchor."""
        found: list[int] = []
        for parent in self.parents:
            found.append(1 if parent < 0 else found[parent] + 1)
        return found

    def children(self) -> list[list[int]]:
        """Nodes below each slot, in the order they stand."""
        found: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            found[parent + 1].append(node)
        return found

    def path(self, node: int) -> list[int]:
        """Nodes from the anchor down to this one, itself included; [] for the anchor, -1."""
        found: list[int] = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def is_chain(self) -> bool:
        """Whether each node's parent is the one before it."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def take(self, nodes: list[int]) -> "Tree":
        """These nodes in this order; each one's parent is among them and before it."""
        number = {-1: -1} | {node: place for place, node in enumerate(nodes)}
        return Tree(
            [self.tokens[node] for node in nodes],
            [number[self.parents[node]] for node in nodes],
            [self.reach[node] for node in nodes],
            [self.source[node] for node in nodes],
            [self.cells[node] for node in nodes],
            [self.drawn[node] for node in nodes],
        )

    def spine_first(self, nodes: list[int]) -> list[int]:
        """Some of the nodes, closed under parents, in the order they are verified: the likeliest path, then the others as they stand.

        Where the target keeps the spine, as it mostly does, its keys and values lie where they belong and nothing is moved.
        """
        best: dict[int, int] = {}
        for node in nodes:
            parent = self.parents[node]
            if parent not in best or self.reach[node] > self.reach[best[parent]]:
                best[parent] = node
        spine: list[int] = []
        while (last := spine[-1] if spine else -1) in best:
            spine.append(best[last])
        taken = set(spine)
        return spine + [node for node in nodes if node not in taken]


@dataclass(frozen=True)
class Sampled:
    """What the sampled nodes of all rows were drawn from, without replacement among siblings.

    Attributes:
        ids: [R, m] tokens of the candidate pool; None: the whole vocabulary. q: [R, laws, m] probabilities, at least float32.
        rows: for each row and slot, the law from which its first sampled child was drawn, -1 where there is none; slots beyond have none.
    """

    ids: Tensor | None
    q: Tensor
    rows: list[list[int]]


@dataclass(frozen=True)
class Proposal:
    """The trees of all rows, and what sampled nodes were drawn from; no law: every node was chosen, a function of the text."""

    trees: list[Tree]
    law: Sampled | None = None

    @property
    def width(self) -> int:
        """n."""
        return max(map(len, self.trees), default=0)

    @property
    def counts(self) -> list[int]:
        """Nodes of each row."""
        return [len(tree) for tree in self.trees]

    def is_chain(self) -> bool:
        return all(tree.is_chain() for tree in self.trees)

    def tokens(self, device: torch.device) -> Tensor:
        """[R, n]; what is beyond a row's count never matches, whatever it is."""
        width = self.width
        rows = [tree.tokens + [0] * (width - len(tree)) for tree in self.trees]
        return torch.tensor(rows, dtype=torch.long, device=device).view(len(rows), width)

    def depths(self) -> np.ndarray:
        """[R, n + 1], 0 for the anchor and as if they hung on it for columns beyond a row's count."""
        found = np.ones((len(self.trees), self.width + 1), dtype=np.int64)
        for row, tree in enumerate(self.trees):
            found[row, 0], found[row, 1 : len(tree) + 1] = 0, tree.depths()
        return found

    def ancestors(self) -> np.ndarray:
        """[R, n + 1, n + 1]: whether slot j is slot i or above it. Columns beyond a row's count see the anchor and themselves."""
        width = self.width + 1
        found = np.zeros((len(self.trees), width, width), dtype=bool)
        found[:, np.arange(width), np.arange(width)] = found[:, :, 0] = True
        for row, tree in enumerate(self.trees):
            for node, parent in enumerate(tree.parents):
                found[row, node + 1] |= found[row, parent + 1]
        return found


def chain(tokens: list[int], reach: list[float], cells: list[int], drawn: bool) -> Tree:
    """A chain of the drafter's nodes."""
    tree = Tree()
    for place, token in enumerate(tokens):
        tree.add(token, place - 1, reach[place], DRAFTER, cells[place], 0 if drawn else -1)
    return tree
