"""The maths of Domino's causal head, in plain PyTorch.

Letters of the paper (arXiv 2605.29707, section 3): H_i backbone output of slot i, S GRU state, E_j token embedding,
W1 and W2 the two factors of the correction, L_i = L_i^base + W2 SiLU(W1 [H_i ; S]).
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def gru_gates(x: Tensor, own: Tensor, state: Tensor) -> Tensor:
    """Consume one token: S' = GRU(E_j, S), no bias, gate order r, z, n.

    Args:
        x: [batch, 3 * gru], E_j W_ihᵀ of the consumed token. own: [batch, 3 * gru], S W_hhᵀ. state: [batch, gru], S before it.

    Returns:
        [batch, gru], S after it.
    """
    width = state.shape[-1]
    r, z = (x[:, : 2 * width] + own[:, : 2 * width]).sigmoid().split(width, dim=-1)
    n = torch.tanh(x[:, 2 * width :] + r * own[:, 2 * width :])
    return torch.lerp(n, state, z)  # (1 - z) n + z S


def split_w1(w1: Tensor, hidden_size: int) -> tuple[Tensor, Tensor]:
    """W1 as its hidden part W_z and state part W_s, so that W_z H is one product for the whole block.

    W1 is [rank, hidden + gru] and its input order is [H ; S]: with hidden 576 and gru 256, columns 0 … 575 meet H and
    columns 576 … 831 meet S.
    """
    return w1[:, :hidden_size], w1[:, hidden_size:]


def correction(z: Tensor, s: Tensor, w2: Tensor) -> Tensor:
    """ΔL_i = W2 SiLU(z_i + s) with z_i = W_z H_i and s = W_s S.

    Args:
        z, s: [batch, rank]. w2: [vocab, rank], or the rows of each text's pool [batch, size, rank].

    Returns:
        [batch, vocab] or [batch, size].
    """
    code = F.silu(z + s)
    return F.linear(code, w2) if w2.dim() == 2 else torch.bmm(w2, code[..., None])[..., 0]


def candidate_pool(base_logits: Tensor, size: int) -> Tensor:
    """The tokens a block's correction is computed for: the likeliest by base logits, over all its slots.

    Args:
        base_logits: [batch, n, vocab].

    Returns:
        [batch, size], ids.
    """
    return base_logits.amax(dim=1).topk(size, dim=-1, sorted=False).indices
