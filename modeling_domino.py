"""Domino drafter: a DFlash backbone and a light causal head (arXiv 2605.29707).

Remote-code manifest (transformers' loader scans these lines for files to fetch; they are paths, not statements):

    from .acceleration/few_queries import *
    from .acceleration/graphs import *
    from .acceleration/invariance import *
    from .acceleration/invariant_attention import *
    from .acceleration/packed_linear import *
    from .acceleration/packed_weights import *
    from .acceleration/rms_norm import *
    from .acceleration/rotary import *
    from .acceleration/same_code import *
    from .acceleration/structure import *
    from .acceleration/summation import *
    from .acceleration/threads import *
    from .acceleration/tree_values import *
    from .acceleration/view import *
    from .acceleration/watched import *
    from .custom_generate/generate import *
    from .devices/child import *
    from .devices/gate import *
    from .devices/identity import *
    from .devices/trial import *
    from .devices/verdict import *
    from .doctor/compare import *
    from .doctor/graph_cases import *
    from .doctor/kernel_cases import *
    from .doctor/pair import *
    from .drafting/calibration import *
    from .drafting/domino import *
    from .drafting/domino_parts import *
    from .drafting/drafter import *
    from .drafting/fused_chain import *
    from .drafting/head import *
    from .drafting/lookup import *
    from .drafting/proposal import *
    from .drafting/sampled import *
    from .drafting/tree import *
    from .generation/assisted_loop import *
    from .generation/budget import *
    from .generation/call import *
    from .generation/candidate_generator import *
    from .generation/checks import *
    from .generation/choosing import *
    from .generation/dispatch import *
    from .generation/drafter_model import *
    from .generation/engine import *
    from .generation/handing_back import *
    from .generation/learnt import *
    from .generation/loop import *
    from .generation/loop_drafter import *
    from .generation/noise import *
    from .generation/opening import *
    from .generation/outputs import *
    from .generation/past import *
    from .generation/processing import *
    from .generation/proposing import *
    from .generation/request import *
    from .generation/sequences import *
    from .generation/settings import *
    from .generation/statistics import *
    from .kernels/common import *
    from .kernels/operators import *
    from .kernels/pool import *
    from .kernels/rollout import *
    from .kernels/sample import *
    from .kernels/seam import *
    from .kernels/tiles import *
    from .kernels/twins import *
    from .verification/accept import *
    from .verification/cache import *
    from .verification/features import *
    from .verification/mask import *
    from .verification/target import *
    from .verification/verdict import *
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3MLP,
    Qwen3RotaryEmbedding,
    eager_attention_forward,
    rotate_half,
)

from .configuration_domino import DominoConfig

# The space after the dots keeps the loader's regular expression from taking these for flat files.
from . drafting.domino import DominoSession  # fmt: skip  # isort: skip
from . generation.dispatch import install  # fmt: skip  # isort: skip
from . generation.drafter_model import DrafterModel  # fmt: skip  # isort: skip


class DominoRMSNorm(nn.Module):
    """RMSNorm in at least float32; Qwen3's own always rounds to float32, which a float64 reference cannot have."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class DominoRotaryEmbedding(Qwen3RotaryEmbedding):
    """Rotary tables in at least float32, for the same reason."""

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [batch, positions, head_dim] in x's dtype, for position_ids [batch, positions]."""
        wide = torch.promote_types(x.dtype, torch.float32)
        angles = position_ids[..., None].to(wide) * self.inv_freq.to(x.device, wide)
        table = torch.cat([angles, angles], dim=-1)
        return tuple((f(table) * self.attention_scaling).to(x.dtype) for f in (torch.cos, torch.sin))


class DominoAttention(nn.Module):
    """Attention of a block over the target's context and itself; the context enters as keys and values only."""

    SHARES_INPUT = (("k_proj", "v_proj"),)  # `acceleration/packed_weights.py`

    def __init__(self, config: DominoConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx, self.head_dim = config, layer_idx, config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = False
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, queries, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, keys, bias=config.attention_bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=config.attention_bias)
        self.q_norm = DominoRMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = DominoRMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def forward(self, hidden_states, context, position_embeddings, attention_mask, past_key_values=None) -> Tensor:
        """hidden_states [batch, q, hidden], context [batch, c, hidden], rotary tables for c + q positions."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_norm(self.q_proj(hidden_states).view(heads)).transpose(1, 2)
        block = hidden_states.shape[1]  # the tables run over context then block: queries take the last positions
        query = _rotate(query, *(table[:, -block:] for table in position_embeddings))
        key, value = self.keys_and_values(torch.cat([context, hidden_states], dim=1), position_embeddings)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)

        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        out, _ = attend(self, query, key, value, attention_mask, scaling=self.scaling, is_causal=False)
        return self.o_proj(out.reshape(*hidden_states.shape[:-1], -1))

    def keys_and_values(self, states: Tensor, position_embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """states [batch, n, hidden] -> keys and values [batch, kv heads, n, head_dim]."""
        heads = (*states.shape[:-1], -1, self.head_dim)
        key = self.k_norm(self.k_proj(states).view(heads)).transpose(1, 2)
        return _rotate(key, *position_embeddings), self.v_proj(states).view(heads).transpose(1, 2)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [batch, heads, n, head_dim]."""
    return x * cos.unsqueeze(1) + rotate_half(x) * sin.unsqueeze(1)


class DominoDecoderLayer(nn.Module):
    """Pre-norm layer of the backbone; only the block has a residual stream."""

    def __init__(self, config: DominoConfig, layer_idx: int):
        super().__init__()
        self.self_attn = DominoAttention(config, layer_idx)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = DominoRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = DominoRMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    def forward(self, hidden_states, context, position_embeddings, attention_mask, past_key_values=None) -> Tensor:
        normed = self.input_layernorm(hidden_states)
        hidden_states = hidden_states + self.self_attn(
            normed, context, position_embeddings, attention_mask, past_key_values
        )
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class DominoModel(DrafterModel):
    """Drafter for a frozen target: backbone, context projection and causal head.

    `forward` is the backbone alone and meets transformers' own dflash contract, so the same weights run head-off with
    `generate(assistant_model=draft, speculation_type="dflash")` where `shift_label` is false. With the head, hand the
    model to `target.generate(assistant_model=draft)`; the counts of the last call are in `statistics`.
    """

    config_class = DominoConfig
    base_model_prefix = "domino"
    main_input_name = "noise_embeds"
    _no_split_modules = ["DominoDecoderLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: DominoConfig):
        super().__init__(config)
        width = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * width, width, bias=False)
        self.hidden_norm = DominoRMSNorm(width, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([DominoDecoderLayer(config, i) for i in range(config.num_hidden_layers)])
        self.norm = DominoRMSNorm(width, eps=config.rms_norm_eps)
        self.rotary_emb = DominoRotaryEmbedding(config)
        self.prefix_gru = nn.GRU(width, config.gru_hidden_dim, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(width + config.gru_hidden_dim, config.emb_dim, bias=False),
            nn.SiLU(),
            nn.Linear(config.emb_dim, config.vocab_size, bias=False),
        )
        self.post_init()

    def forward(
        self,
        noise_embeds: Tensor,
        context_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        **kwargs,
    ) -> BaseModelOutputWithPast:
        r"""
        Backbone over blocks (paper, section 3, step 1).

        Args:
            noise_embeds: [batch, q, hidden], target embeddings of the anchor and the masks; several blocks in training.
            context_hidden_states: [batch, c, len(target_layer_ids) * hidden], features not yet in the cache.
            attention_mask: [batch, cached + c + q] with 0 for padding, or a ready mask [batch, 1, q, cached + c + q].
            position_ids: [batch, c + q], context then block; default: counting on from the cache.
            past_key_values: keys and values of context; the block's are appended too, crop them with `crop(-q)`.

        Returns:
            `last_hidden_state` [batch, q, hidden] after the final norm, and the cache.
        """
        cached = past_key_values.get_seq_length() if past_key_values is not None else 0
        context = self.hidden_norm(self.fc(context_hidden_states))
        new = context.shape[1] + noise_embeds.shape[1]
        if position_ids is None:
            position_ids = torch.arange(cached, cached + new, device=noise_embeds.device)[None]
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            everything = noise_embeds.new_empty(noise_embeds.shape[0], cached + new, 1)  # only its shape is read
            attention_mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=noise_embeds,
                attention_mask=attention_mask,
                encoder_hidden_states=everything,
            )
        hidden_states, position_embeddings = noise_embeds, self.rotary_emb(noise_embeds, position_ids)
        for layer in self.layers:
            hidden_states = layer(hidden_states, context, position_embeddings, attention_mask, past_key_values)
        return BaseModelOutputWithPast(last_hidden_state=self.norm(hidden_states), past_key_values=past_key_values)

    def read_context(self, features: Tensor, positions: Tensor, cache: Cache) -> None:
        """Put features [batch, c, F * hidden] at positions [batch, c] into the cache, without a block behind them."""
        context = self.hidden_norm(self.fc(features))
        tables = self.rotary_emb(context, positions)
        for layer in self.layers:
            cache.update(*layer.self_attn.keys_and_values(context, tables), layer.self_attn.layer_idx)

    def open(self, target, rows: int, device: torch.device, *settings, **named) -> DominoSession:
        """The drafter's state of one call with this target: see `drafting/domino.py`."""
        return DominoSession(self, target, rows, device, *settings, **named)


DominoConfig.register_for_auto_class()
DominoModel.register_for_auto_class("AutoModel")
install()

__all__ = ["DominoModel"]
