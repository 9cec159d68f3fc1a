"""Build models of random weights and time the stages of a round of speculative decoding on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from accelerate.utils import get_max_memory
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.initialization import no_init_weights

from ...configuration_domino import DominoConfig
from ...generation.settings import EngineSettings
from ...modeling_domino import DominoModel
from . import counts
from .ceilings import fill, random_values
from .drafting import NODES, Drafting
from .timing import Timing, measure

FEW_LAYERS = 4  # measured of a target that is too large to be built whole
POOL = EngineSettings().candidate_pool  # of trees, which only the engine drafts


@dataclass(frozen=True, order=True)
class Point:
    """One thing to time. stage: "target", "draft", "head" (a chain) or "tree". context: cached tokens, 0 for the head, which
    sees none. tokens: read by the target, or drafted."""

    stage: str
    context: int
    batch: int
    tokens: int


@dataclass(frozen=True)
class Plan:
    """What to time, and how.

    Attributes:
        contexts, batches: every pair is timed. tokens: lengths of the target's forwards, sorted. depths: numbers of the
            target's layers that are built, one after the other. new_tokens: features a draft starts from.
    """

    contexts: list[int]
    batches: list[int]
    tokens: list[int]
    depths: list[int]
    new_tokens: int
    repeats: int
    dtype: torch.dtype
    device: torch.device

    def pairs(self) -> Iterator[tuple[int, int]]:
        return ((context, batch) for context in self.contexts for batch in self.batches)

    def steps(self) -> int:
        """Points that will be timed."""
        pairs = len(self.contexts) * len(self.batches)
        return pairs * (len(self.depths) * len(self.tokens) + 1) + 2 * len(self.batches)


def depths(config: Any, layers: int | None, dtype: torch.dtype, device: torch.device) -> list[int]:
    """How many layers of the target to build: all, or two depths out of which its time is extrapolated.

    `layers` is the most that may be built; None builds all if their weights take less than a third of the free memory.
    """
    if layers is None:
        free = get_max_memory()[0 if device.type == "cuda" else "cpu"]
        layers = config.num_hidden_layers if counts.stored_weights(config) * dtype.itemsize < free / 3 else FEW_LAYERS
    if config.num_hidden_layers <= layers:
        return [config.num_hidden_layers]
    return [layers // 2, layers]


def random_model(make: Callable[[], Any], device: torch.device) -> Any:
    """The model `make` returns, on the device, with small random weights and norms of one."""
    with torch.device(device), no_init_weights():
        model = make()
    model.tie_weights()
    for weight in model.parameters():
        weight.requires_grad_(False)
        fill(weight) if weight.dim() > 1 else weight.fill_(1)
    return model.eval()


def build_target(config: Any, layers: int, dtype: torch.dtype, device: torch.device) -> Any:
    """The target with its first `layers` layers, embedding and LM head.

    Raises:
        `ValueError`: its layers hold other weights than those counted, e.g. experts.
    """
    fields = {**config.to_dict(), "num_hidden_layers": layers}
    if fields.get("layer_types"):
        fields["layer_types"] = fields["layer_types"][:layers]
    shallow = type(config)(**fields)
    model = random_model(
        lambda: AutoModelForCausalLM.from_config(shallow, dtype=dtype, attn_implementation="sdpa"), device
    )
    outside = {id(part.weight) for part in (model.get_input_embeddings(), model.get_output_embeddings())}
    matrices = (weight for weight in model.parameters() if weight.dim() > 1 and id(weight) not in outside)
    held, counted = sum(weight.numel() for weight in matrices), layers * counts.layer_weights(config)
    if held != counted:
        raise ValueError(
            f"A {config.model_type} layer holds {held // layers:,} weights, not the {counted // layers:,} of a dense one with "
            "a gated MLP: its bytes and FLOPs cannot be counted. Take a dense target."
        )
    return model


def filled_cache(config: Any, context: int, batch: int, dtype: torch.dtype, device: torch.device) -> DynamicCache:
    """A cache of `context` random keys and values for each of `batch` sequences."""
    cache = DynamicCache(config=config)
    width = counts.head_dim(config)
    shape = (batch, counts.kv_width(config) // width, context, width)
    for layer in range(config.num_hidden_layers if context else 0):
        cache.update(random_values(shape, dtype, device), random_values(shape, dtype, device), layer)
    return cache


@torch.inference_mode()
def time_target(target: Any, plan: Plan, bar: tqdm) -> dict[Point, Timing]:
    """Forwards over each number of tokens on a filled cache, all logits computed, as verification needs them."""
    found = {}
    for context, batch in plan.pairs():
        cache = filled_cache(target.config, context, batch, plan.dtype, plan.device)
        for tokens in plan.tokens:
            ids = torch.randint(target.config.vocab_size, (batch, tokens), device=plan.device)
            forward = partial(target, input_ids=ids, past_key_values=cache, use_cache=True)
            undo = partial(cache.crop, -tokens)
            found[Point("target", context, batch, tokens)] = measure(forward, plan.device, plan.repeats, undo)
            bar.update()
    return found


@torch.inference_mode()
def time_drafter(draft: DominoModel, target: Any, plan: Plan, bar: tqdm) -> dict[Point, Timing]:
    """Backbone and base logits for each pair; for each batch the head's chain over the vocabulary and its tree over the pool."""
    found, drafts = {}, draft.config.num_drafts
    for context, batch in plan.pairs():
        drafting = Drafting(draft, target, context, batch, plan.new_tokens)
        backbone = measure(drafting.backbone, plan.device, plan.repeats, drafting.undo)
        found[Point("draft", context, batch, drafts)] = backbone
        bar.update()
        if (head := Point("head", 0, batch, drafts)) not in found:
            block = drafting.backbone()
            found[head] = measure(partial(drafting.chain, block), plan.device, plan.repeats)
            pooled = Drafting(draft, target, 0, batch, 0, POOL)
            tree = measure(partial(pooled.tree, block), plan.device, plan.repeats)
            found[Point("tree", 0, batch, NODES)] = tree
            bar.update(2)
    return found


def time_stages(target_config: Any, draft_config: DominoConfig, plan: Plan) -> list[dict[Point, Timing]]:
    """Timings of every point, one dict for each depth; the drafter's are in the last."""
    found = []
    with tqdm(total=plan.steps(), unit="point") as bar:
        for layers in plan.depths:
            bar.set_description(f"{layers} layers")
            target = build_target(target_config, layers, plan.dtype, plan.device)
            found.append(time_target(target, plan, bar))
            if layers == plan.depths[-1]:
                draft = random_model(lambda: DominoModel._from_config(draft_config, dtype=plan.dtype), plan.device)
                found[-1] |= time_drafter(draft, target, plan, bar)
            del target  # before the next is built
    return found
