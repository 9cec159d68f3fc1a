"""Bytes and FLOPs of each stage, from the configs alone.

What is counted: every weight matrix a forward uses is read once, the KV cache is read once, a multiply-add is two FLOPs.
Neglected: activations, norms, biases, rotary tables, softmax, the row of the embedding, and the writing of new keys and values.
Configs are those of dense decoders with gated MLPs and full attention, the drafter's included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Work:
    """bytes: moved between memory and the processor. flops: floating-point operations."""

    bytes: float
    flops: float


def head_dim(config: Any) -> int:
    """Width of a head; families that do not state it divide the hidden size."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def kv_width(config: Any) -> int:
    """Width of a token's keys in one layer, all heads together; its values are as wide."""
    return (getattr(config, "num_key_value_heads", None) or config.num_attention_heads) * head_dim(config)


def layer_weights(config: Any) -> int:
    """Weights of one decoder layer: q, k, v, o and the three matrices of the MLP."""
    attention = 2 * config.num_attention_heads * head_dim(config) + 2 * kv_width(config)
    return config.hidden_size * (attention + 3 * config.intermediate_size)


def lm_head_weights(config: Any) -> int:
    """Weights of the LM head."""
    return config.vocab_size * config.hidden_size


def target_weights(config: Any) -> int:
    """Weights one forward reads: layers and LM head, not the embedding. Qwen3-8B: 7.57 billion."""
    return config.num_hidden_layers * layer_weights(config) + lm_head_weights(config)


def stored_weights(config: Any) -> int:
    """Weights that take memory: with the embedding, where it is not the LM head itself."""
    return target_weights(config) + (0 if config.tie_word_embeddings else lm_head_weights(config))


def fc_weights(draft: Any) -> int:
    """Weights of the projection of the target's features."""
    return len(draft.target_layer_ids) * draft.hidden_size**2


def backbone_weights(draft: Any) -> int:
    """Weights of the drafter's layers and feature projection. For Qwen3-8B: 1048.6 million."""
    return draft.num_hidden_layers * layer_weights(draft) + fc_weights(draft)


def gru_weights(draft: Any) -> int:
    """Weights of the causal encoder."""
    return 3 * draft.gru_hidden_dim * (draft.hidden_size + draft.gru_hidden_dim)


def head_weights(draft: Any) -> int:
    """Weights of the causal head: GRU, W1 and W2. For Qwen3-8B: 55.93 million."""
    w1 = draft.emb_dim * (draft.hidden_size + draft.gru_hidden_dim)
    return gru_weights(draft) + w1 + draft.vocab_size * draft.emb_dim


def cache_bytes(config: Any, context: int, itemsize: int) -> int:
    """Bytes of the keys and values of one sequence of `context` tokens, all layers."""
    return 2 * config.num_hidden_layers * kv_width(config) * context * itemsize


def attention_flops(config: Any, queries: int, keys: float) -> float:
    """FLOPs of the scores and of the weighted values, all layers, for queries that see `keys` keys on average."""
    return 4 * config.num_hidden_layers * config.num_attention_heads * head_dim(config) * queries * keys


def target_work(config: Any, tokens: int, context: int, batch: int, itemsize: int) -> Work:
    """One forward of the target over [batch, tokens] with `context` cached tokens and logits of all positions."""
    weights = target_weights(config)
    seen = context + (tokens + 1) / 2  # causal: token i of the block sees i of it, itself included
    return Work(
        bytes=weights * itemsize + batch * cache_bytes(config, context, itemsize),
        flops=batch * (2 * weights * tokens + attention_flops(config, tokens, seen)),
    )


def draft_work(draft: Any, new_tokens: int, context: int, batch: int, itemsize: int) -> Work:
    """The backbone over [batch, block] and the base logits of its drafts through the target's LM head.

    `new_tokens` of the `context` tokens come as features, which cost their projection and, in each layer, keys and values.
    """
    layers, head = draft.num_hidden_layers * layer_weights(draft), lm_head_weights(draft)
    per_feature = fc_weights(draft) + 2 * draft.num_hidden_layers * draft.hidden_size * kv_width(draft)
    products = draft.block_size * layers + new_tokens * per_feature + draft.num_drafts * head
    attention = attention_flops(draft, draft.block_size, context + draft.block_size)
    return Work(
        bytes=(backbone_weights(draft) + head) * itemsize + batch * cache_bytes(draft, context - new_tokens, itemsize),
        flops=batch * (2 * products + attention),
    )


def head_work(draft: Any, batch: int, itemsize: int) -> Work:
    """The serial rollout over a block. A step waits for the one before, so its weights are read anew in each step.

    A processor whose cache holds the head's weights reads them once and can be faster than this says.
    """
    corrected = draft.num_drafts - draft.pure_draft_prefix_len
    w_z = draft.emb_dim * draft.hidden_size  # applied to all slots at once, before the loop
    per_correction = draft.emb_dim * (draft.gru_hidden_dim + draft.vocab_size)
    steps = draft.num_drafts * gru_weights(draft) + corrected * per_correction if corrected else 0
    return Work(
        bytes=(steps + w_z) * itemsize,
        flops=2 * batch * (steps + draft.num_drafts * w_z),
    )


def rollout_work(draft: Any, batch: int, pool: int, itemsize: int, triton: bool) -> Work:
    """Bytes and FLOPs of a chain's walk whose weights are read anew in each step, as if no cache held them.

    Triton reads a token's input projection out of a table; torch multiplies. A pool costs reading all base logits (float32) and
    its rows of W2 once, then rows that each text has for itself.
    """
    gru, rank, drafts = draft.gru_hidden_dim, draft.emb_dim, draft.num_drafts
    corrected = drafts - draft.pure_draft_prefix_len
    state = 3 * gru * gru if triton else gru_weights(draft)
    size = pool or draft.vocab_size
    rows = (batch if pool else 1) * size * rank
    weights = drafts * state + corrected * (rank * gru + rows) + (batch * size * rank if pool else 0)
    logits = batch * drafts * draft.vocab_size * 4 if pool else batch * corrected * size * 4
    flops = 2 * batch * (drafts * state + corrected * rank * (gru + size) + drafts * rank * draft.hidden_size)
    return Work(bytes=(weights + rank * draft.hidden_size) * itemsize + logits, flops=flops)


def tree_work(draft: Any, nodes: int, batch: int, pool: int, itemsize: int) -> Work:
    """A walk over a tree as deep as the block, a depth at a time: it reads what a chain's reads, and each further node is a step more."""
    chain, size = rollout_work(draft, batch, pool, itemsize, triton=False), pool or draft.vocab_size
    step = gru_weights(draft) + draft.emb_dim * (draft.gru_hidden_dim + size)
    return Work(chain.bytes, chain.flops + 2 * batch * (nodes - draft.num_drafts) * step)
