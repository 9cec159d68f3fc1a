"""How sure the drafter was of each draft, seen while it drafts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Chances:
    """Probabilities of the latest round's drafts, to be taken once."""

    def __init__(self) -> None:
        self.latest: list[Tensor] = []

    def take(self) -> list[float]:
        """Of each draft of the round that just ended, under the distribution it was drawn from; empty where none were drafted."""
        latest, self.latest = self.latest, []
        return torch.stack(latest).tolist() if latest else []


@contextmanager
def watch_chances(draft) -> Iterator[Chances]:
    """Note the chances for the length of a `with` block, by wrapping the instance's `rollout`; what is drafted stays the same."""
    chances, own, rollout = Chances(), draft.__dict__.get("rollout"), draft.rollout

    def watched(hidden, base_logits, anchor_ids, embed, pick, *args, **kwargs):
        chances.latest = []

        def noting(logits, drafts):
            picked = pick(logits, drafts)
            if picked is not None:
                token, q = picked
                chances.latest.append((q[0, token[0, 0]] - q[0].logsumexp(dim=-1)).exp())
            return picked

        return rollout(hidden, base_logits, anchor_ids, embed, noting, *args, **kwargs)

    draft.rollout = watched
    try:
        yield chances
    finally:
        del draft.rollout
        if own is not None:
            draft.rollout = own
