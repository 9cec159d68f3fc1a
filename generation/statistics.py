"""What a generate call did: accepted tokens per round and the acceptance length τ."""

from dataclasses import dataclass, field

from .. drafting.proposal import LOOKUP, Tree  # fmt: skip  # isort: skip


@dataclass(frozen=True)
class Round:
    """What one round of the engine put to the target for a row, the nodes that were kept, and their tokens with the target's own behind.

    Where the text ends within them, the rest is not said.
    """

    tree: Tree
    path: list[int]
    tokens: list[int]


@dataclass
class DraftStatistics:
    """Counts of one `generate` call.

    Convention, used everywhere in this project: a *round* is one target forward after the prefill; it advances by the
    accepted drafts plus one bonus (or correction) token, and **τ is the mean of (accepted + 1) over rounds**. A checkpoint
    with `shift_label` drafts B tokens a round (τ ≤ B + 1), one without drafts B - 1 (τ ≤ B); SGLang always drafts B - 1.
    State the number of drafts with every τ.

    Attributes:
        accepted: accepted drafts of each round.
        drafted: drafts put to the target in each round; fewer than a block near the length limit or an end token.
        lookup: of the accepted drafts of each round, those that only lookup had found; empty where there is no lookup.
    """

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    lookup: list[int] = field(default_factory=list)

    @classmethod
    def together(cls, rows: "list[DraftStatistics]") -> "DraftStatistics":
        """The rounds of all rows, one row after the other."""
        parts = ([n for row in rows for n in getattr(row, name)] for name in ("accepted", "drafted", "lookup"))
        return cls(*parts)

    def note(self, tree: Tree, path: list[int]) -> None:
        """A round verified a tree and kept a path of it."""
        self.accepted.append(len(path))
        self.drafted.append(len(tree))
        self.lookup.append(sum(tree.source[node] == LOOKUP for node in path))

    @property
    def rounds(self) -> int:
        """Target forwards after the prefill."""
        return len(self.accepted)

    @property
    def drafted_tokens(self) -> int:
        """Drafts put to the target, over all rounds."""
        return sum(self.drafted)

    @property
    def acceptance_length(self) -> float:
        """τ of this call; 0.0 when there was no round."""
        return (sum(self.accepted) + self.rounds) / self.rounds if self.rounds else 0.0
