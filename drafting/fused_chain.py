"""The rollout as one launch: for picks that depend on nothing but the logits of their step and on noise."""

from dataclasses import dataclass
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.generation import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from . domino_parts import DominoParts, Embed  # fmt: skip  # isort: skip
from . head import candidate_pool, split_w1  # fmt: skip  # isort: skip
from .. kernels.seam import operators, uses_triton  # fmt: skip  # isort: skip

# Projections of every token, E W_ihᵀ, of a drafter for a target's embedding, and the weights they were made of.
_tables: WeakKeyDictionary = WeakKeyDictionary()
PROJECTED = 4096  # tokens projected at a time


@dataclass(frozen=True)
class Plan:
    """How to pick, where nothing but this decides.

    Attributes:
        embedding: the target's. samples: whether drafts are drawn. temperature, top_k, top_p: of the draw; 0 and 1.0 do not cut.
        banned: tokens that are never drafted.
    """

    embedding: nn.Module
    samples: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    banned: tuple[int, ...] = ()


def plan_for(
    processors: LogitsProcessorList, embedding: nn.Module, samples: bool, banned: tuple[int, ...] = ()
) -> Plan | None:
    """The plan that equals these processors: none, or when sampling temperature, top-k and top-p in this order; else None."""
    if not samples:
        return None if processors else Plan(embedding, banned=banned)
    if not isinstance(processors, list):  # any callable will do for transformers' loop
        return None
    known = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}
    kinds = [type(processor) for processor in processors]
    if kinds != [kind for kind in known if kind in kinds]:
        return None
    if any(
        getattr(p, "min_tokens_to_keep", 1) != 1 or getattr(p, "filter_value", -torch.inf) != -torch.inf
        for p in processors
    ):
        return None
    values = {known[kind]: getattr(p, known[kind]) for kind, p in zip(kinds, processors, strict=True)}
    return Plan(embedding, True, **values, banned=banned)


def fused(draft: DominoParts, hidden: Tensor, base_logits: Tensor, plan: Plan) -> bool:
    """Whether the rollout of a plan is one launch: there is Triton, one device for all, and a step with a correction."""
    if hidden.shape[1] <= draft.config.pure_draft_prefix_len:
        return False
    homes = {hidden.device, base_logits.device, plan.embedding.weight.device}
    return len(homes) == 1 and uses_triton(hidden.device)


@torch.no_grad()
def fused_rollout(
    draft: DominoParts, hidden: Tensor, base_logits: Tensor, anchor_ids: Tensor, embed: Embed, plan: Plan, pool: int
) -> tuple[Tensor, Tensor | None]:
    """Drafts [R, n] of a block in one launch, and the logits q [R, n, vocab] they were drawn from, None for a greedy plan.

    The first drafts, which have no correction and so wait for nothing, are picked before the launch.
    """
    ops, prefix = operators(), draft.config.pure_draft_prefix_len
    if plan.banned:
        base_logits = base_logits.index_fill(2, torch.tensor(plan.banned, device=base_logits.device), -torch.inf)
    w_z, w_s = split_w1(draft.embed_proj.get_parameter("0.weight"), draft.config.hidden_size)
    z, w2, base = nn.functional.linear(hidden, w_z), draft.embed_proj.get_parameter("2.weight"), base_logits
    table = projections(draft, embed, plan.embedding)
    first, q = _first(ops, base_logits[:, :prefix], plan)
    given = torch.cat([anchor_ids, first], dim=1)
    ids = None
    if 0 < pool < base.shape[-1]:
        # sorted, so that of equal logits the lowest token wins, as over the vocabulary
        ids = candidate_pool(base_logits, pool).sort(dim=-1).values
        base, w2 = ops.gather_pool(base_logits, w2, ids)
    walk = (given, z, base, table, draft.prefix_gru.get_parameter("weight_hh_l0"), w_s, w2, ids)
    if plan.samples:
        noise = torch.rand(len(given), hidden.shape[1] - prefix, device=hidden.device)
        places, kept = ops.rollout_sample(*walk, noise, plan.temperature, plan.top_k, plan.top_p)
        if ids is not None:
            kept = torch.full_like(base_logits[:, prefix:], -torch.inf).scatter_(
                2, ids[:, None].expand(-1, kept.shape[1], -1), kept.to(base_logits)
            )
        q = torch.cat([base_logits[:, :0] if q is None else q, kept.to(base_logits)], dim=1)
    else:
        places, q = ops.rollout_greedy(*walk), None
    drafts = places if ids is None else ids.gather(1, places)
    return torch.cat([first, drafts], dim=1), q


def _first(ops: ModuleType, base: Tensor, plan: Plan) -> tuple[Tensor, Tensor | None]:
    """The drafts that come from base logits [batch, f, vocab] alone, [batch, f], and what they were picked from."""
    if not plan.samples:
        return base.argmax(dim=-1), None
    flat = base.flatten(0, 1)
    noise = torch.rand(len(flat), device=base.device)
    token, q = ops.sample(flat, noise, plan.temperature, plan.top_k, plan.top_p)
    return token.view(base.shape[:2]), q.view(base.shape)


@torch.no_grad()
def projections(draft: DominoParts, embed: Embed, embedding: nn.Module) -> Tensor:
    """E W_ihᵀ of the whole vocabulary, [vocab, 3 * gru] in the draft's dtype, made once while neither weight changes.

    It makes a step's input projection the reading of one row. For Qwen3-8B's drafter it takes 0.93 GB in bfloat16.
    """
    weight = draft.prefix_gru.get_parameter("weight_ih_l0")
    table_of: Any = embedding  # which has a weight, whatever module it is
    made_of = [_state(w) for w in (table_of.weight, weight)]
    of_draft = _tables.setdefault(draft, WeakKeyDictionary())
    if embedding in of_draft and of_draft[embedding][0] == made_of:
        return of_draft[embedding][1]
    tokens = torch.arange(draft.config.vocab_size, device=weight.device)
    table = torch.empty(len(tokens), weight.shape[0], dtype=weight.dtype, device=weight.device)
    for part in tokens.split(PROJECTED):
        torch.mm(embed(part[:, None])[:, 0], weight.T, out=table[part[0] : part[-1] + 1])
    of_draft[embedding] = (made_of, table)
    return table


def _state(weight: Tensor) -> tuple:
    """What changes when a weight does; tensors made in inference mode cannot be told apart by version."""
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version, weight.dtype, weight.device
