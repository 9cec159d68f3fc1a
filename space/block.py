"""One block, step by step: what the paper's idea does to it.

The backbone proposes all places of a block at once, none knowing what the others became; the causal head corrects each place once
the drafts before it are known; the target reads all of them in one forward and keeps them up to its first other opinion.
Computed again from the text, outside of any timed run, as a chain of the likeliest drafts, by the session, the verification and the
rule that the engine uses. The trees of a run are not computed again: the run tells them (`observe.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..drafting.calibration import Calibration
from ..drafting.drafter import Picking, Wanted
from ..evaluation.methods import Models
from ..generation.settings import EngineSettings
from ..verification.target import RowTarget
from ..verification.verdict import accept_greedy


@dataclass(frozen=True)
class Choice:
    """A token and its probability."""

    id: int
    chance: float


@dataclass(frozen=True)
class Place:
    """A place of the block.

    Attributes:
        base: the backbone's likeliest token. corrected: the likeliest after the head's correction, which is the draft.
        target: the target's likeliest after the drafts before this place. corrects: whether the head has a say here.
    """

    base: Choice
    corrected: Choice
    target: Choice
    corrects: bool


@dataclass(frozen=True)
class Block:
    """A block behind its anchor; the first `accepted` drafts are kept, `bonus` is what the target says after them."""

    anchor: int
    places: list[Place]
    accepted: int
    bonus: Choice


def _choices(logits: Tensor) -> list[Choice]:
    """The likeliest of each row of [n, V]."""
    chance, token = logits.float().softmax(dim=-1).max(dim=-1)
    return [Choice(int(t), float(c)) for t, c in zip(token, chance, strict=True)]


@torch.no_grad()
def one_block(models: Models, ids: list[int]) -> Block:
    """The block that Domino drafts behind a text, greedily.

    Args:
        ids: the text so far; its last token is the anchor, which the drafter's context does not hold yet.

    Worked example: text [a b c], anchor c: features are those of a and b, the block stands at the positions of c and after, and
    place 1 is the token after c.
    """
    target, draft, settings = models.target, models.draft, EngineSettings()
    config, device = draft.config, target.device
    text = torch.tensor(ids, device=device)
    anchor, count = text[None, -1:], config.num_drafts
    room, chunk = len(ids) + count, settings.prefill_chunk
    rows = RowTarget(target, config.target_layer_ids, 1, room, None, chunk, False, device)
    session = draft.open(target, 1, device, pool=settings.candidate_pool)
    for features, _ in rows.prefill([text[:-1]]):
        session.add(features, [features.shape[1]])
    block = session.block(anchor, count)
    seen: list[Tensor] = []

    def noted(logits: Tensor, paths: list) -> Tensor:
        seen.append(logits[0, 0])
        return logits

    wanted = Wanted(count, [count], 0.0, chain=True, calibration=Calibration())
    proposal = session.walk(block, anchor, wanted, Picking(process=noted))
    logits, _ = rows.verify(anchor, proposal)
    (path,), (follows,) = accept_greedy(logits.float(), proposal)
    (tree,), verified = proposal.trees, _choices(logits[0])
    sure = [choice.chance for choice in _choices(torch.stack(seen))]
    corrected = [Choice(token, chance) for token, chance in zip(tree.tokens, sure, strict=True)]
    found = zip(_choices(block.base[0]), corrected, verified[:-1], strict=True)
    places = [Place(*choices, corrects=n >= config.pure_draft_prefix_len) for n, choices in enumerate(found)]
    return Block(ids[-1], places, len(path), Choice(follows, verified[len(path)].chance))
