"""Which drafts to keep, as pure functions. All are lossless: what they emit has the target's distribution.

Letters: R rows, n drafts, V vocabulary; p [R, n + 1, V] the target's probabilities after the processors, after 0 … n drafts; q [R, n, V]
what the drafts x [R, n] were sampled from; γ [R] the drafts of each row that count, at most n.

Each says `accepted` [R], the drafts kept, and `token` [R], the one that follows them (bonus or correction).
"""

import numpy as np
import torch
from torch import Tensor

Accepted = tuple[Tensor, Tensor]


def likeliest(logits: Tensor) -> Tensor:
    """The argmax [...] of logits [..., V], of equals the first; on a CPU by numpy, which takes an eighth of torch's time for it."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(np.asarray(logits.numpy().argmax(axis=-1)))


def greedy(choices: list[list[int]], drafts: list[list[int]], counts: list[int]) -> tuple[list[int], list[int]]:
    """Keep drafts as long as they are the target's own choice. On the host, where all of it is needed anyway.

    Args:
        choices: [R][n + 1], the target's argmax (or its samples, see `exact_match`) after 0 … n drafts. drafts: [R][n]. counts: γ.

    Worked example: choices [5, 7, 9], drafts [5, 8], γ = 2: one kept, then 7.
    """
    rows = list(zip(choices, drafts, counts, strict=True))
    kept = [next((i for i in range(most) if own[i] != said[i]), most) for own, said, most in rows]
    return kept, [own[i] for own, i in zip(choices, kept, strict=True)]


def exact_match(p: Tensor, q: Tensor | None, drafts: Tensor, counts: Tensor) -> Accepted:
    """Sample the target at every place and compare: needs no q and keeps least. P(keep x) = p(x)."""
    choices = torch.multinomial(p.flatten(0, 1), 1).view(p.shape[:2])
    accepted, token = greedy(choices.tolist(), drafts.tolist(), counts.tolist())
    return torch.tensor(accepted, device=p.device), torch.tensor(token, device=p.device)


def leviathan(p: Tensor, q: Tensor, drafts: Tensor, counts: Tensor) -> Accepted:
    """Token by token: keep x with min(1, p/q), else sample the residual max(p - q, 0) (arXiv 2211.17192, algorithm 1)."""
    ratio = _ratios(p, q, drafts)
    within = torch.arange(drafts.shape[1], device=drafts.device) < counts[:, None]
    kept = ((torch.rand_like(ratio) < ratio) & within).long().cumprod(dim=1)
    accepted = kept.sum(dim=1)
    return accepted, _follow(p, q, torch.ones_like(ratio), accepted, counts)


def block(p: Tensor, q: Tensor, drafts: Tensor, counts: Tensor) -> Accepted:
    """The whole block at once, which keeps at least as many as token by token (arXiv 2403.10444, algorithm 2).

    With P_0 = 1 and P_i = min(1, P_{i-1} p(x_i) / q(x_i)), a block of length i is accepted with
        h_γ = P_γ,    h_i = s_i / (s_i + 1 - P_i),    s_i = Σ_x max(P_i p(x) - q(x), 0) after i drafts, i < γ,
    the longest accepted one is kept, and the next token comes from max(P_i p - q, 0), or from p after all γ.
    """
    ratio = _ratios(p, q, drafts)
    reach = torch.ones_like(ratio[:, :1])
    for i in range(drafts.shape[1]):
        reach = torch.cat([reach, (reach[:, -1:] * ratio[:, i : i + 1]).clamp(max=1)], dim=1)  # P_0 … P_n
    after = torch.nn.functional.pad(q, (0, 0, 0, 1))  # after n drafts there is no q; its h is not this formula's
    s = (reach[..., None] * p - after).clamp(min=0).sum(dim=-1)
    h = s / (s + 1 - reach).clamp(min=torch.finfo(s.dtype).tiny)
    place = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    h = torch.where(place == counts[:, None], reach, h)
    accepts = (torch.rand_like(h) < h) & (place <= counts[:, None])
    accepts[:, 0] = True  # nothing kept is always possible
    accepted = (accepts * place).amax(dim=1)
    return accepted, _follow(p, q, reach, accepted, counts)


def _ratios(p: Tensor, q: Tensor, drafts: Tensor) -> Tensor:
    """p(x) / q(x) of every draft, [R, n]; x was sampled from q, so q(x) > 0."""
    chosen = drafts[..., None]
    return (p[:, :-1].gather(2, chosen) / q.gather(2, chosen))[..., 0]


def _follow(p: Tensor, q: Tensor, reach: Tensor, accepted: Tensor, counts: Tensor) -> Tensor:
    """Sample what follows the kept drafts: the residual where a draft was turned down, p where all γ were kept.

    Args:
        reach: [R, ≥ n], the factor of p in the residual after 0 … drafts.
    """
    rows = torch.arange(p.shape[0], device=p.device)
    target = p[rows, accepted]
    last = q.shape[1] - 1
    if last < 0:
        return torch.multinomial(target, 1)[:, 0]
    factor = reach[rows, accepted.clamp(max=reach.shape[1] - 1)]
    residual = (factor[:, None] * target - q[rows, accepted.clamp(max=last)]).clamp(min=0)
    # A residual of nothing but rounding can only follow an event of probability zero.
    whole = (accepted == counts) | (residual.sum(dim=-1) <= 0)
    return torch.multinomial(torch.where(whole[:, None], target, residual), 1)[:, 0]


RULES = {"block": block, "leviathan": leviathan, "exact": exact_match}
