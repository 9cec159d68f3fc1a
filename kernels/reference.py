"""Domino's head in plain PyTorch: the reference that every faster version must equal.

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


# The twins of the Triton operators. They compute in float32 on weights of any dtype and round where the operators round:
# what meets a weight is first rounded to the weight's dtype.


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 values as a 16-bit dtype would hold them, still float32; wider dtypes leave them."""
    return x.float().to(dtype).float() if dtype.itemsize == 2 else x.float()


def gru_from_projection(x: Tensor, state: Tensor, weight_hh: Tensor) -> Tensor:
    """One step from the projection x = E W_ihᵀ [batch, 3 * gru] and S [batch, gru]; returns float32 [batch, gru]."""
    own = F.linear(rounded(state, weight_hh.dtype), weight_hh.float())
    return rounded(gru_gates(x.float(), own, state.float()), weight_hh.dtype)


def step_logits(z: Tensor, s: Tensor, w2: Tensor, base: Tensor) -> Tensor:
    """base + W2 SiLU(z + s) in float32, NaN as -inf; w2 [vocab, rank] -> [batch, vocab], or pooled [batch, size, rank]."""
    code = rounded(F.silu(z.float() + s.float()), w2.dtype)
    change = F.linear(code, w2.float()) if w2.dim() == 2 else torch.bmm(w2.float(), code[..., None])[..., 0]
    logits = base.float() + change
    return torch.where(logits.isnan(), -float("inf"), logits)


def greedy_step(z: Tensor, s: Tensor, w2: Tensor, base: Tensor) -> Tensor:
    """The likeliest token [batch] of `step_logits`, of equals the lowest."""
    return step_logits(z, s, w2, base).argmax(dim=-1)


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


def sample_step(z, s, w2, base, noise, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """`sample` of `step_logits`."""
    return sample(step_logits(z, s, w2, base), noise, temperature, top_k, top_p)


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
        state = gru_from_projection(table[given[:, place]], state, weight_hh)
    token = given[:, -1]
    picked: list[Tensor] = []
    for slot in range(known - 1, z.shape[1]):
        state = gru_from_projection(table[token], state, weight_hh)
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


def accept(choices: Tensor, drafts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Accepted [batch], and what is said [batch, n + 1]: the choices up to the first draft that is not one, then -1."""
    at = torch.arange(choices.shape[1], device=choices.device)
    kept = ((drafts == choices[:, :-1]) & (at[:-1] < counts[:, None])).long().cumprod(dim=1).sum(dim=1)
    return kept, torch.where(at <= kept[:, None], choices, -1)
