"""What a generate call did: accepted tokens per round and the acceptance length τ."""

from dataclasses import dataclass, field


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
    """

    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

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
