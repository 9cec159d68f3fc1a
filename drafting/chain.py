"""The serial part of drafting: walk the block, each token seeing those before it (paper, section 3, steps 2-4)."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor
from torch.nn.functional import linear

from . fused_chain import fused, fused_rollout  # fmt: skip  # isort: skip
from . head import candidate_pool, correction, gru_gates, split_w1  # fmt: skip  # isort: skip

# The products of a step over a pool take microseconds; to wake a thread that sleeps for its share of one takes longer.
THREADS_SLEEP = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


@contextmanager
def one_thread() -> Iterator[None]:
    """torch works with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rollout(
    draft,
    hidden: Tensor,
    base_logits: Tensor,
    anchor_ids: Tensor,
    embed: Callable[[Tensor], Tensor],
    pick: Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None],
    pool: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """Draft n tokens from n slots.

    Draft i (1-based) is picked from L_i = base_i, plus the correction when i > pure_draft_prefix_len, with the GRU state
    that has consumed the anchor and drafts 1 … i-1. Worked example, prefix length 1, n = 3, anchor x:
        d1 ~ base_1;   S = GRU(x, d1),     d2 ~ base_2 + Δ(H_2, S);   S = GRU(x, d1, d2), d3 ~ base_3 + Δ(H_3, S).
    Both label layouts read the same way once the caller has cut off the unused slot 0 of the fill-in layout.

    Args:
        draft: the `DominoModel`; its head weights are used on its own device and in its own dtype.
        hidden: [batch, n, hidden], backbone output H of the drafting slots, on the draft's device.
        base_logits: [batch, n, vocab], on the target's device, at least float32.
        anchor_ids: [batch, 1], last verified token.
        embed: token ids [batch, 1] -> target embeddings [batch, 1, hidden] on the draft's device.
        pick: (logits [batch, vocab], drafts so far [batch, i-1]) -> (token [batch, 1], logits q [batch, vocab]), or None to
            end the block before this draft. Its attribute `plan` (`fused_rollout.Plan`), if it has one, says that nothing else
            decides: then the whole rollout may be one launch (`kernels/seam.py`), which does not call it. `compact` says that
            it reads the logits alone, and may be shown only those of the pool; `samples` then says whether q matters.
        pool: corrected drafts come from this many tokens only, the likeliest of the block by base logits; 0 is all. Other tokens
            have logit -inf, so q stays a distribution that the accept rules can be exact about.

    Returns:
        drafts [batch, m] and the logits they were picked from [batch, m, vocab], m <= n; None for the latter where a greedy pick
        says by `compact` or `plan` that only the drafts matter.
    """
    plan = getattr(pick, "plan", None)
    if fused(draft, hidden, base_logits, plan):
        return fused_rollout(draft, hidden, base_logits, anchor_ids, embed, plan, pool)
    w_z, _ = split_w1(draft.embed_proj[0].weight, draft.config.hidden_size)
    z, w2, ids, pooled = linear(hidden, w_z), draft.embed_proj[2].weight, None, None
    if 0 < pool < base_logits.shape[-1] and hidden.shape[1] > draft.config.pure_draft_prefix_len:
        ids = candidate_pool(base_logits, pool)
        w2, pooled = w2[ids.to(w2.device)], base_logits.gather(2, ids[:, None].expand(-1, hidden.shape[1], -1))
    lone = ids is not None and hidden.device.type == "cpu" and THREADS_SLEEP
    with one_thread() if lone else nullcontext():
        return _walk(draft, z, base_logits, anchor_ids, embed, pick, w2, ids, pooled)


def _walk(draft, z: Tensor, base_logits: Tensor, anchor_ids: Tensor, embed, pick, w2: Tensor, ids, pooled):
    """The steps. z [batch, n, rank]; ids [batch, size] and pooled [batch, n, size], the base logits there, of a pool or None."""
    gru, prefix = draft.prefix_gru, draft.config.pure_draft_prefix_len
    _, w_s = split_w1(draft.embed_proj[0].weight, draft.config.hidden_size)
    # W_hh and W_s meet the same S: one product a step
    recurrent = torch.cat([gru.weight_hh_l0, w_s])
    state = z.new_zeros(z.shape[0], gru.hidden_size)
    own = z.new_zeros(z.shape[0], len(gru.weight_hh_l0))
    drafts, picked_from = anchor_ids[:, :0], []
    token = anchor_ids
    has_head = prefix < draft.config.num_drafts  # a DFlash drafter needs no state
    for i in range(z.shape[1]):
        if has_head:
            state = gru_gates(linear(embed(token)[:, 0], gru.weight_ih_l0), own, state)
            own, s = linear(state, recurrent).split([len(gru.weight_hh_l0), len(w_s)], dim=-1)
        among = ids if i >= prefix else None
        logits = base_logits[:, i] if among is None else pooled[:, i]
        if i >= prefix:
            logits = logits + correction(z[:, i], s, w2).to(logits)
        picked = _pick(pick, logits, drafts, among, base_logits)
        if picked is None:
            break
        token, q = picked
        drafts = torch.cat([drafts, token], dim=-1)
        picked_from.append(q)
    if not picked_from:
        return drafts, base_logits[:, :0]
    if picked_from[-1] is None:  # greedy over a pool: nobody reads q
        return drafts, None
    return drafts, torch.stack(picked_from, dim=1)


def _pick(pick, logits: Tensor, drafts: Tensor, ids: Tensor | None, base_logits: Tensor):
    """What `pick` says to logits [batch, vocab], or with ids [batch, size] to those of a pool.

    A pick that looks at nothing but the logits (`compact`) sees the pool alone: of SmolLM2's vocabulary that is a fiftieth.
    """
    if ids is None:
        return pick(logits, drafts)
    wide = base_logits.shape[0], base_logits.shape[-1]
    if not getattr(pick, "compact", False):
        return pick(logits.new_full(wide, -float("inf")).scatter_(1, ids, logits), drafts)
    picked = pick(logits, drafts)
    if picked is None:
        return None
    place, q = picked
    return ids.gather(1, place), q.new_full(wide, -float("inf")).scatter_(1, ids, q) if pick.samples else None
