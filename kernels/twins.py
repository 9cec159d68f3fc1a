"""The Triton operators' twins: what tests compare them with, in plain PyTorch. No part of drafting calls this file.

The formulas (paper, section 3) stand here for themselves, apart from those of `drafting/head.py`. All is computed in float32 on
weights of any dtype and rounded where the operators round: what meets a weight is first rounded to the weight's dtype.
"""

import torch
from torch import Tensor
from torch.nn import functional as F


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 values as a 16-bit dtype would hold them, still float32; wider dtypes leave them."""
    return x.float().to(dtype).float() if dtype.itemsize == 2 else x.float()


def gru_step(x: Tensor, state: Tensor, weight_hh: Tensor) -> Tensor:
    """S' [batch, gru] = GRU(E, S), no bias, from x = E W_ihᵀ [batch, 3 * gru], S [batch, gru] and W_hh [3 * gru, gru].

    r = σ(x_r + W_r S), z = σ(x_z + W_z S), n = tanh(x_n + r W_n S), S' = (1 - z) n + z S. The gates lie in the order r, z, n.
    """
    x_r, x_z, x_n = x.float().chunk(3, dim=-1)
    own_r, own_z, own_n = F.linear(rounded(state, weight_hh.dtype), weight_hh.float()).chunk(3, dim=-1)
    r, z = (x_r + own_r).sigmoid(), (x_z + own_z).sigmoid()
    n = (x_n + r * own_n).tanh()
    return rounded((1 - z) * n + z * state.float(), weight_hh.dtype)


def step_logits(z: Tensor, s: Tensor, w2: Tensor, base: Tensor) -> Tensor:
    """base + W2 SiLU(z + s) in float32, NaN as -inf; w2 [vocab, rank] -> [batch, vocab], or pooled [batch, size, rank]."""
    code = rounded(F.silu(z.float() + s.float()), w2.dtype)
    change = F.linear(code, w2.float()) if w2.dim() == 2 else torch.bmm(w2.float(), code[..., None])[..., 0]
    logits = base.float() + change
    return torch.where(logits.isnan(), -float("inf"), logits)


def warp(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Temperature, top-k and top-p on logits [batch, size]. Equal logits are kept or cut together.

    top-k keeps what is at least the k-th largest; top-p then keeps the most probable until their mass reaches top_p.
    """
    x = (logits.float() / temperature).clamp(max=torch.finfo(torch.float32).max)  # an infinity is no distribution
    if top_k > 0:
        kth = x.topk(min(top_k, x.shape[-1]), dim=-1).values[..., -1:]
        x = x.masked_fill(x < kth, -float("inf"))
    if top_p < 1:
        ordered = x.sort(dim=-1, descending=True).values
        mass = ordered.softmax(dim=-1).cumsum(dim=-1)
        last = (mass < top_p).sum(dim=-1, keepdim=True).clamp(max=x.shape[-1] - 1)
        x = x.masked_fill(x < ordered.gather(-1, last), -float("inf"))
    return torch.where(x.isneginf().all(dim=-1, keepdim=True), 0.0, x)


def sample(logits: Tensor, noise: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """Places [batch] drawn by inverse CDF from noise [batch] in [0, 1), and q as logits [batch, size].

    Worked example: q = (0.5, 0.3, 0.2), noise 0.6: the sums are 0.5, 0.8, 1.0, the first above 0.6 is place 1.
    """
    q = warp(logits, temperature, top_k, top_p)
    total = q.softmax(dim=-1).cumsum(dim=-1)
    reached = (total > noise[:, None] * total[:, -1:]) & ~q.isneginf()
    last = q.shape[-1] - 1 - (~q.isneginf()).flip(-1).long().argmax(dim=-1)
    return torch.where(reached.any(dim=-1), reached.long().argmax(dim=-1), last), q


def gather_pool(base: Tensor, w2: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Base logits [batch, n, size] and rows of W2 [batch, size, rank] of a pool ids [batch, size]."""
    return base.gather(2, ids[:, None].expand(-1, base.shape[1], -1)).float(), w2[ids]


def rollout_steps(given, z, base, table, weight_hh, w_s, w2, ids, choose) -> Tensor:
    """Walk the block: `choose(logits [batch, size], number of the step)` picks places [batch].

    Args:
        given: [batch, f + 1], anchor and f drafts. z: [batch, n, rank]. base: [batch, n, size]. table: [vocab, 3 * gru].
        w2: [vocab, rank] with ids None, or [batch, size, rank] with the pool's tokens ids [batch, size].

    Returns:
        [batch, n - f] places.

    Worked example, f = 1, n = 3, given (x, d1): S = GRU(GRU(0, x), d1) meets slot 1, whose pick d2 is consumed for slot 2.
    """
    known = given.shape[1]
    state = torch.zeros(given.shape[0], weight_hh.shape[1], device=z.device)
    for place in range(known - 1):
        state = gru_step(table[given[:, place]], state, weight_hh)
    token = given[:, -1]
    picked: list[Tensor] = []
    for slot in range(known - 1, z.shape[1]):
        state = gru_step(table[token], state, weight_hh)
        s = F.linear(rounded(state, w_s.dtype), w_s.float())
        place = choose(step_logits(z[:, slot], s, w2, base[:, slot]), len(picked))
        token = place if ids is None else ids.gather(1, place[:, None])[:, 0]
        picked.append(place)
    return torch.stack(picked, dim=1)


def rollout_greedy(given, z, base, table, weight_hh, w_s, w2, ids) -> Tensor:
    """`rollout_steps` with the likeliest place of each step."""
    return rollout_steps(given, z, base, table, weight_hh, w_s, w2, ids, lambda x, _: x.argmax(dim=-1))


def rollout_sample(
    given, z, base, table, weight_hh, w_s, w2, ids, noise, temperature: float, top_k: int, top_p: float
) -> tuple[Tensor, Tensor]:
    """`rollout_steps` with each step drawn by `sample` from noise [batch, n - f]; also q as logits [batch, n - f, size]."""
    kept: list[Tensor] = []

    def choose(logits: Tensor, step: int) -> Tensor:
        place, q = sample(logits, noise[:, step], temperature, top_k, top_p)
        kept.append(q)
        return place

    places = rollout_steps(given, z, base, table, weight_hh, w_s, w2, ids, choose)
    return places, torch.stack(kept, dim=1)
