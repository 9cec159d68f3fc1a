"""The ways to decode that are compared: one registry, to which each drafter adds a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast

PLAIN = "plain"


@dataclass
class Models:
    """What methods decode with: the target, its tokenizer, a Domino drafter and an ordinary draft model, if there are any."""

    target: Any
    tokenizer: Any
    draft: Any = None
    assistant: Any = None


@dataclass(frozen=True)
class Method:
    """A way to decode.

    Attributes:
        options: models -> further arguments of `target.generate`. drafter: models -> the model whose time counts as drafting.
        needs: the field of `Models` that must be there.
    """

    about: str
    options: Callable[[Models], dict[str, Any]]
    drafter: Callable[[Models], Any] = lambda models: None
    needs: str | None = None


class StockDFlash:
    """The drafter's backbone as transformers' own dflash path wants it: no head, fill-in slots.

    That path reads slot k as the token k places after the anchor and leaves slot 0 out. With `shift_label` slot k is the token
    k + 1 places after it: slots 0 … B-2 are handed over as 1 … B-1.
    """

    def __init__(self, draft):
        self.draft, self.config, self.device = draft, draft.config, draft.device
        self.generation_config = None

    def __call__(self, *args, **kwargs) -> BaseModelOutputWithPast:
        out = self.draft(*args, **kwargs)
        if self.config.shift_label:
            out.last_hidden_state = torch.roll(out.last_hidden_state, 1, dims=1)
        return out


def _engine(about: str, **settings) -> Method:
    """Domino with these `EngineSettings`."""
    return Method(
        about,
        lambda models: {"custom_generate": models.draft.decode, **settings},
        lambda models: models.draft,
        needs="draft",
    )


METHODS = {
    PLAIN: Method("generate as it is", lambda models: {}),
    "prompt-lookup": Method("transformers' prompt lookup, 10 tokens", lambda models: {"prompt_lookup_num_tokens": 10}),
    "assistant": Method(
        "transformers' assisted decoding with an ordinary draft model",
        lambda models: {"assistant_model": models.assistant},
        lambda models: models.assistant,
        needs="assistant",
    ),
    "dflash": Method(
        "transformers' dflash path on Domino's backbone, the head left out",
        lambda models: {"assistant_model": StockDFlash(models.draft), "speculation_type": "dflash"},
        lambda models: models.draft,
        needs="draft",
    ),
    "engine-plain": _engine("the engine without drafts: what it brings besides speculation", budget=0),
    "engine-chain": _engine("a chain of drafts, as many as pay", shape="chain", lookup=False),
    "engine-tree": _engine("a tree of drafts, as many nodes as pay", shape="tree", lookup=False),
    "engine": _engine("the same by name: on a CPU a tree and what lookup finds in the text, as many nodes as pay"),
    "engine-24": _engine(
        "the default with 24 nodes a round: acceptance lengths do not depend on measured times", budget=24
    ),
    "engine-compiled": _engine("the default with torch.compile: a minute or two before the first answer", compile=True),
    "assisted": _engine("Domino through transformers' assisted loop, a chain of drafts", loop="transformers"),
    "domino": Method(
        "Domino as one argument of generate brings it: the engine's default",
        lambda models: {"assistant_model": models.draft},
        lambda models: models.draft,
        needs="draft",
    ),
}
