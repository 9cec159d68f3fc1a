"""How many drafts to put to the target, so that expected tokens per second are most.

Letters: R rows, n drafts, c_i the drafter's largest probability at draft i, s_i the chance that draft i is kept when those before it
are. Checking n drafts of every row is expected to give E(n) = Σ_rows (1 + s_1 + s_1 s_2 + … + s_1…s_n) tokens in
T(n) = T_block + n T_step + T_verify(n + 1) seconds. s_i is c_i corrected by what was observed; the times are those measured.

Drafts are taken as long as one more raises E / T. Since the terms of E fall and T grows, the first one that does not is the place to
stop. The rule is lossless because it decides on draft i by c_i, which depends on the drafts *before* i alone: deciding by the
probability of the very token that was sampled would favour likely tokens.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median_low

BINS = 12
PRIOR = 6.0  # observations that a bin's first guess counts as
MEMORY = 0.99  # weight that is left of a bin's observations after the next
RECENT = 9  # times of which the median counts
PAUSES = (8, 16, 32, 64)  # plain rounds before drafting is tried again, longer after each failure
MEASURED = 2  # times of a length that must be known; the very first, of allocations and first calls, does not count
STALE = 64  # rounds after which the time of a length is measured anew
TRIAL = 4  # rounds of drafting before it is judged, again after each pause
FADE = 0.97  # weight that is left of a round's gain after the next
CREDIT = 1.0  # gain that drafting begins with: single rounds say little


class Calibration:
    """Chance that a draft is kept, by the drafter's largest probability there; bins are even in log-odds from -4 to 4."""

    def __init__(self) -> None:
        centres = [1 / (1 + math.exp(4 - 8 * n / (BINS - 1))) for n in range(BINS)]
        self.kept = [PRIOR * centre for centre in centres]
        self.tried = [PRIOR] * BINS

    def _bin(self, confidence: float) -> int:
        confidence = confidence if math.isfinite(confidence) else 0.0
        odds = math.log(max(confidence, 1e-6) / max(1 - confidence, 1e-6))
        return min(max(round((odds + 4) / 8 * (BINS - 1)), 0), BINS - 1)

    def chance(self, confidence: float) -> float:
        """c -> s."""
        place = self._bin(confidence)
        return self.kept[place] / self.tried[place]

    def observe(self, confidences: list[float], accepted: int) -> None:
        """What became of one row's checked drafts: the first `accepted` were kept, the next was not, the others say nothing."""
        for n, confidence in enumerate(confidences[: accepted + 1]):
            place = self._bin(confidence)
            # A bin remembers at least what its first guess was worth.
            fade = MEMORY if self.tried[place] > PRIOR / MEMORY else 1.0
            self.kept[place] = self.kept[place] * fade + (n < accepted)
            self.tried[place] = self.tried[place] * fade + 1


@dataclass
class Costs:
    """Seconds of a round's parts for one number of rows: medians of the latest.

    Worked example: verify known at 1 and 9 tokens as 27 and 31 ms: 5 tokens are taken to need 29.
    """

    block: deque = field(default_factory=lambda: deque(maxlen=RECENT))
    step: deque = field(default_factory=lambda: deque(maxlen=RECENT))
    verify: dict[int, deque] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)  # round in which each length was seen last
    rounds: int = 0

    def saw_verify(self, tokens: int, seconds: float) -> None:
        if tokens not in self.verify:
            self.verify[tokens] = deque(maxlen=RECENT)
        else:
            if self._stale(tokens):
                self.verify[tokens].clear()
            self.verify[tokens].append(seconds)
        self.rounds += 1
        self.last[tokens] = self.rounds

    def knows(self, tokens: int) -> bool:
        """Measured often enough and lately: a length that once looked slow would never be tried again."""
        return len(self.verify.get(tokens, ())) >= MEASURED and not self._stale(tokens)

    def _stale(self, tokens: int) -> bool:
        return self.rounds - self.last[tokens] >= STALE

    def of_draft(self, drafts: int) -> float:
        return (median_low(self.block) if self.block else 0.0) + drafts * (median_low(self.step) if self.step else 0.0)

    def of_verify(self, tokens: int) -> float:
        """Between or beyond measured lengths by a straight line; the nearest one's where only one is known."""
        known = sorted(n for n, times in self.verify.items() if times)
        if tokens in known or len(known) == 1:
            return median_low(self.verify[tokens if tokens in known else known[0]])
        right = next((n for n in known[1:] if n > tokens), known[-1])
        left = max(n for n in known if n < right)
        a, b = median_low(self.verify[left]), median_low(self.verify[right])
        return max(a + (b - a) / (right - left) * (tokens - left), 1e-9)


class Round:
    """One round's decision, draft by draft.

    Args:
        most: drafts each row has room for.
    """

    def __init__(self, calibration: Calibration, costs: Costs, most: list[int]):
        self.calibration, self.costs, self.most = calibration, costs, most
        self.reach = [1.0] * len(most)
        self.drafts = 0
        self.tokens = float(len(most))
        self.seconds = costs.of_draft(0) + costs.of_verify(1)

    def pays(self, confidences: list[float]) -> bool:
        """Whether to check one more draft of every row, given its c_i [R]; if so it counts as taken."""
        n = self.drafts + 1
        if n > max(self.most):
            return False
        reach = [
            before * self.calibration.chance(confidence) if n <= most else 0.0
            for before, confidence, most in zip(self.reach, confidences, self.most, strict=True)
        ]
        tokens = self.tokens + sum(reach)
        seconds = self.costs.of_draft(n) + self.costs.of_verify(n + 1)
        if tokens * self.seconds <= self.tokens * seconds:
            return False
        self.reach, self.drafts, self.tokens, self.seconds = reach, n, tokens, seconds
        return True

    @property
    def rate(self) -> float:
        """Expected tokens per second."""
        return self.tokens / self.seconds


@dataclass
class Worth:
    """Whether drafting pays at all: what rounds gained of late over as long a stretch of plain ones.

    Attributes:
        gain: tokens a row, summed over rounds that fade; weight: their number. rounds: since the last pause. pause: plain rounds to come.
        failures: pauses since it paid. trying: whether the next round begins a trial.

    Worked example: a round gives 1.8 tokens in 30 ms, plain rounds 30 / 20 = 1.5: its gain is 0.3.
    """

    gain: float = CREDIT
    weight: float = 0.0
    rounds: int = 0
    pause: int = 0
    failures: int = 0
    trying: bool = False

    def judge(self, gain: float) -> None:
        """After a round of drafting."""
        self.gain, self.weight, self.rounds = FADE * self.gain + gain, FADE * self.weight + 1, self.rounds + 1
        if self.rounds < TRIAL:
            return
        if self.gain >= 0:
            self.failures = 0
            return
        self.pause = PAUSES[min(self.failures, len(PAUSES) - 1)]
        self.failures, self.rounds = self.failures + 1, 0
        # the next trial counts as much as all before
        self.gain, self.weight = self.gain * min(1.0, TRIAL / self.weight), min(self.weight, TRIAL)

    def drafts_now(self) -> bool:
        """Whether this round drafts; in a pause it does not."""
        if self.pause == 0:
            return True
        self.pause -= 1
        self.trying = self.pause == 0
        return False


class VerifyLength:
    """Chooses, round by round. What it learns outlives a call: the next one with the same models begins with it."""

    def __init__(self) -> None:
        self.calibration = Calibration()
        self.costs: dict[int, Costs] = {}
        self.worths: dict[int, Worth] = {}

    def at(self, rows: int) -> Costs:
        """The costs at about this many rows; 5, 6, 7 and 8 rows share theirs."""
        return self.costs.setdefault(_about(rows), Costs())

    def worth(self, rows: int) -> Worth:
        """What drafting was worth at about this many rows."""
        return self.worths.setdefault(_about(rows), Worth())

    def unknown(self, rows: int, most: int) -> int | None:
        """Drafts of a round that is needed to know what things cost: all, none, half of `most`; None: it is known.

        After a pause it is half of them once more, so that old news is not believed for ever.
        """
        costs, worth = self.at(rows), self.worth(rows)
        wanted = next((n for n in (most, 0, most // 2) if not costs.knows(n + 1)), None)
        if wanted is None and worth.trying:
            worth.trying, wanted = False, most // 2
        return wanted

    def judge(self, done: Round, rows: int) -> None:
        """After a round's decision: what it is expected to gain."""
        plain = self.at(rows).of_verify(1)
        self.worth(rows).judge(done.tokens / rows - done.seconds / plain)


def _about(rows: int) -> int:
    return 1 << (rows - 1).bit_length()
