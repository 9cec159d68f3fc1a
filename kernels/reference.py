"""Domino's head in plain PyTorch: the reference that every faster version must equal.

Letters of the paper (arXiv 2605.29707, section 3): H_i backbone output of slot i, S GRU state, E_j token embedding,
W1 and W2 the two factors of the correction, L_i = L_i^base + W2 SiLU(W1 [H_i ; S]).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def gru_step(e: Tensor, state: Tensor, weight_ih: Tensor, weight_hh: Tensor) -> Tensor:
    """Consume one token: S' = GRU(E_j, S), no bias, gate order r, z, n.

    Args:
        e: [batch, hidden], embedding of the consumed token.
        state: [batch, gru], S before it.
        weight_ih: [3 * gru, hidden]. weight_hh: [3 * gru, gru].

    Returns:
        [batch, gru], S after it.
    """
    return torch.gru_cell(e, state, weight_ih, weight_hh)


def split_w1(w1: Tensor, hidden_size: int) -> tuple[Tensor, Tensor]:
    """W1 as its hidden part W_z and state part W_s, so that W_z H is one product for the whole block.

    W1 is [rank, hidden + gru] and its input order is [H ; S]: with hidden 576 and gru 256, columns 0 … 575 meet H and
    columns 576 … 831 meet S.
    """
    return w1[:, :hidden_size], w1[:, hidden_size:]


def correction(z: Tensor, state: Tensor, w_s: Tensor, w2: Tensor) -> Tensor:
    """ΔL_i = W2 SiLU(z_i + W_s S) with z_i = W_z H_i.

    Args:
        z: [batch, rank]. state: [batch, gru]. w_s: [rank, gru]. w2: [vocab, rank].

    Returns:
        [batch, vocab].
    """
    return F.linear(F.silu(z + F.linear(state, w_s)), w2)


def candidate_pool(base_logits: Tensor, size: int) -> Tensor:
    """The tokens a block's correction is computed for: the likeliest by base logits, over all its slots.

    Args:
        base_logits: [batch, n, vocab].

    Returns:
        [batch, size], ids.
    """
    return base_logits.amax(dim=1).topk(size, dim=-1, sorted=False).indices


def pooled_correction(z: Tensor, state: Tensor, w_s: Tensor, w2_rows: Tensor) -> Tensor:
    """`correction` for a pool: w2_rows [batch, size, rank] are the pool's rows of W2. Returns [batch, size]."""
    code = F.silu(z + F.linear(state, w_s))
    return torch.bmm(w2_rows, code[..., None])[..., 0]
