"""How many nodes to put to the target, so that expected tokens per second are most.

Letters: R rows, n nodes of the widest row, s_1 ≥ s_2 ≥ … the reach of a row's nodes. Verifying the n best nodes of every row is expected
to give E(n) = Σ_rows (1 + s_1 + … + s_n) tokens in T_draft + T(n) seconds, and n is where that ratio is largest. Times are measured
where the host waits for the work, on a CPU. What is learnt outlives a call: the next one with the same models begins with it.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np

SIZES = (0, 1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64)  # of trees whose times are kept apart
FIRST = (24, 0, 8)  # nodes of all rows together, measured before anything is decided
MEASURED = 2  # times of each; the very first of a size, of allocations and first calls, does not count
ASKED = 6  # rounds of each, at most: a text may be near its end, a drafter sure of fewer nodes
# rounds without a large tree after which one is measured anew: a size that noise made slow is not slow for ever
STALE = 64
FADE = 0.97  # weight that is left of a size's times after the next round
RETRY = 16  # rounds without the drafter after which it is tried again
NEWEST = 0.15  # weight of the last round in what drafting brings


@dataclass
class Costs:
    """Seconds of a verification by its number of nodes, for one number of rows.

    Times are averaged by size, old ones fade, and no larger tree is taken to be faster than a smaller one: where measurements say so,
    neighbours share their average, by weight (isotonic regression).

    Worked example: 0 nodes 30 ms, 8 nodes 40 ms, 16 nodes 36 ms, equally often: 8 and 16 are taken to need 38 ms, 4 nodes 34.
    """

    rows: int = 1
    weight: dict[int, float] = field(default_factory=dict)
    mean: dict[int, float] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    rounds: int = 0
    fresh: int = 0  # the last round that said something of large trees

    def saw(self, nodes: int, seconds: float) -> None:
        size = SIZES[bisect_left(SIZES, min(nodes, SIZES[-1]))]
        self.seen[size] = self.seen.get(size, 0) + 1
        self.rounds += 1
        if 2 * nodes * self.rows >= FIRST[0]:
            self.fresh = self.rounds
        if self.seen[size] == 1:
            return
        for known in list(self.weight):  # calls in other threads may add sizes
            self.weight[known] *= FADE
        before = self.weight.get(size, 0.0)
        # a process that was put aside for a moment says nothing of the work
        if before and seconds > 3 * self.mean[size]:
            seconds = 3 * self.mean[size]
        self.mean[size] = (self.mean.get(size, 0.0) * before + seconds) / (before + 1)
        self.weight[size] = before + 1

    def unknown(self, most: int) -> int | None:
        """Nodes of a round that is needed to know what things cost; None: it is known."""
        wanted = [min(-(-nodes // self.rows), most) for nodes in FIRST]
        seen = [self.seen.get(SIZES[bisect_left(SIZES, n)], 0) for n in wanted]
        pairs = zip(wanted, seen, strict=True)
        first = next((n for n, s in pairs if s <= MEASURED and self.asked.get(n, 0) < ASKED), None)
        return wanted[0] if first is None and self.rounds - self.fresh >= STALE else first

    def ask(self, nodes: int) -> None:
        """A round is made that large to see what it costs, or as large as the drafter can."""
        self.asked[nodes] = self.asked.get(nodes, 0) + 1
        self.fresh = self.rounds

    def line(self) -> list[tuple[int, float]]:
        """Known sizes and their seconds, which rise."""
        blocks: list[list] = []  # [sizes, sum of weights, mean]
        for size in sorted(self.mean):
            blocks.append([[size], self.weight[size], self.mean[size]])
            while len(blocks) > 1 and blocks[-2][2] > blocks[-1][2]:
                (sizes, w, m), (more, v, k) = blocks[-2:]
                blocks[-2:] = [[sizes + more, w + v, (m * w + k * v) / (w + v)]]
        return [(size, mean) for sizes, _, mean in blocks for size in sizes]

    def upto(self, most: int) -> np.ndarray:
        """Seconds of verifying 0, 1, … `most` nodes; between and beyond known sizes by a straight line, nothing where none is known."""
        line = self.line() or [(0, 0.0)]
        sizes, seconds = zip(*line, strict=True)
        found = np.interp(np.arange(most + 1), sizes, seconds)
        if len(line) > 1 and most > sizes[-1]:
            slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
            found[sizes[-1] :] += slope * np.arange(most + 1 - sizes[-1])
        return found


@dataclass
class Choice:
    """What a round verifies: the size, the tokens expected of it and its seconds."""

    nodes: int
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Budget:
    """What was learnt at about one number of rows.

    Attributes:
        rate: tokens per second that rounds with the drafter were expected to bring of late; None before the first. drafting: seconds of a
            proposal of late. idle: rounds since the last one with the drafter.
    """

    costs: Costs = field(default_factory=Costs)
    rate: float | None = None
    drafting: float = 0.0
    idle: int = 0

    def choose(self, reaches: list[list[float]], spent: float, most: int) -> Choice:
        """The best size.

        Args:
            reaches: of each row's nodes, falling. spent: seconds of drafting already. most: nodes allowed.
        """
        widest = min(max(map(len, reaches), default=0), most)
        gains = np.zeros((len(reaches), widest))
        for row, reach in enumerate(reaches):
            gains[row, : len(reach)] = reach[:widest]
        tokens = len(reaches) + np.concatenate([[0.0], gains.sum(axis=0).cumsum()])
        seconds = spent + self.costs.upto(widest)
        best = int((tokens / seconds).argmax())
        return Choice(best, float(tokens[best]), float(seconds[best]))

    def drafts_now(self, without: Choice) -> bool:
        """Whether this round asks the drafter, given what it would bring without."""
        if self.rate is None or self.rate >= without.rate or self.idle >= RETRY:
            self.idle = 0
            return True
        self.idle += 1
        return False

    def floor(self, rows: int, most: int) -> float:
        """Reach below which a node costs more than it brings: tokens per second now, times the seconds of one more node."""
        if self.rate is None:
            return 0.0
        seconds = self.costs.upto(most)
        slope = (seconds[-1] - seconds[0]) / max(most, 1)
        return float(
            self.rate * slope / rows / 2
        )  # by half: slopes are uneven, and what is drafted need not be verified

    def drafted(self, choice: Choice) -> None:
        """A round with the drafter chose this."""
        self.rate = choice.rate if self.rate is None else self.rate + NEWEST * (choice.rate - self.rate)

    def took(self, seconds: float) -> None:
        """A proposal took so long."""
        self.drafting = seconds if not self.drafting else self.drafting + NEWEST * (seconds - self.drafting)
