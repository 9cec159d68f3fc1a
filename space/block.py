"""One block, step by step: what the paper's idea does to it.

The backbone proposes all places of a block at once, none knowing what the others became; the causal head corrects each place once
the drafts before it are known; the target reads all of them in one forward and keeps them up to its first other opinion.
Computed again from the text, outside of any timed run, with the parts of the model that are public.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache

from ..evaluation.methods import Models
from ..generation.engine import EngineSettings
from ..verification.features import feature_entries, feature_states


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
    """A block behind its anchor; `bonus` is what the target says after the accepted drafts."""

    anchor: int
    places: list[Place]
    bonus: Choice

    @property
    def accepted(self) -> int:
        """Drafts that are the target's own choice, up to the first that is not."""
        wrong = (n for n, place in enumerate(self.places) if place.corrected.id != place.target.id)
        return next(wrong, len(self.places))


def _choices(logits: Tensor) -> list[Choice]:
    """The likeliest of each row of [n, V]."""
    chance, token = logits.float().softmax(dim=-1).max(dim=-1)
    return [Choice(int(t), float(c)) for t, c in zip(token, chance, strict=True)]


@torch.no_grad()
def one_block(models: Models, ids: list[int], count: int | None = None) -> Block:
    """The block that Domino drafts behind a text, greedily.

    Args:
        ids: the text so far; its last token is the anchor, which the drafter's context does not hold yet.
        count: drafts that are put to the target; None is all.

    Worked example: text [a b c], anchor c: features are those of a and b, the block stands at the positions of c and after, and
    place 1 is the token after c.
    """
    target, draft = models.target, models.draft
    config, device = draft.config, target.device
    text = torch.tensor([ids], device=device)
    layers = config.target_layer_ids
    out = target(text[:, :-1], output_hidden_states=feature_entries(layers))
    depth = target.config.get_text_config().num_hidden_layers
    features = torch.cat(list(feature_states(out.hidden_states, layers, depth)), dim=-1).to(draft.device, draft.dtype)
    embedding, head = target.get_input_embeddings(), target.get_output_embeddings()

    def embed(tokens: Tensor) -> Tensor:
        return embedding(tokens.to(device)).to(draft.device, draft.dtype)

    masks = text.new_full((1, config.block_size - 1), config.mask_token_id)
    positions = torch.arange(len(ids) - 1, device=draft.device)[None]
    anchor = text[:, -1:]
    context = DynamicCache(config=config)
    hidden = draft.draft_block(embed(torch.cat([anchor, masks], dim=-1)), features, positions, context)
    hidden = hidden[:, config.first_slot :]
    base = head(hidden.to(device, target.dtype)).float()

    def pick(logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
        return logits.argmax(-1, keepdim=True), logits

    pool = EngineSettings().candidate_pool
    drafts, corrected = draft.rollout(hidden, base, anchor, embed, pick, pool)
    drafts = drafts[:, :count]
    # The anchor's row says what place 1 should be, the last draft's row what follows all of them.
    verified = _choices(target(torch.cat([text, drafts], dim=-1), logits_to_keep=drafts.shape[1] + 1).logits[0])
    found = zip(_choices(base[0]), _choices(corrected[0]), verified[:-1], strict=False)  # as many as were put to it
    first = config.pure_draft_prefix_len
    places = [Place(*choices, corrects=n >= first) for n, choices in enumerate(found)]
    block = Block(ids[-1], places, verified[-1])
    kept = block.accepted
    return Block(ids[-1], places, verified[kept])
