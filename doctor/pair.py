"""A tiny random target and a drafter for it: enough to run every kind of work of a round."""

from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from .. configuration_domino import DominoConfig  # fmt: skip  # isort: skip
from .. modeling_domino import DominoModel  # fmt: skip  # isort: skip

LAYERS = 4
SHAPE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,  # logits far enough apart to depend on the text
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def tiny_pair(device: torch.device, dtype: torch.dtype) -> tuple[Any, DominoModel]:
    """Target and drafter, the same weights at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        target: Any = LlamaForCausalLM(LlamaConfig(num_hidden_layers=LAYERS, **SHAPE))
        own: dict[str, Any] = {
            "block_size": 9,
            "num_target_layers": LAYERS,
            "target_layer_ids": [0, 2],
            "mask_token_id": 159,
        }
        head: dict[str, Any] = {"gru_hidden_dim": 32, "emb_dim": 16, "num_hidden_layers": 1, "head_dim": 16}
        draft: Any = DominoModel(DominoConfig(**SHAPE, **own, **head))
        nn.init.normal_(draft.embed_proj[2].weight)  # a head that matters
    return target.to(device, dtype).eval(), draft.to(device, dtype).eval()


def prompts(device: torch.device, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ragged prompts [rows, 9], padded on the left, and their mask."""
    ids = torch.randint(3, 159, (rows, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    for row in range(1, rows):
        mask[row, : 2 * row] = 0
    return ids.to(device), mask.to(device)
