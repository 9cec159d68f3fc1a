"""Greedy accept and commit in one launch. Twin: `reference.accept`."""

import torch
from torch import Tensor

from . common import NAMESPACE, rows_of, tl, triton  # fmt: skip  # isort: skip


@triton.jit
def accept_kernel(choices, choice_stride, drafts, draft_stride, counts, accepted, said, drafted, BN: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BN)
    draft = tl.load(drafts + b * draft_stride + at, mask=at < drafted, other=-1)
    choice = tl.load(choices + b * choice_stride + at, mask=at <= drafted, other=-1)
    count = tl.minimum(tl.load(counts + b), drafted)
    # the first place that is not kept: at most γ, whatever is drafted there
    kept = tl.min(tl.where((draft != choice) | (at >= count), at, BN), axis=0)
    tl.store(accepted + b, kept.to(tl.int64))
    # a kept draft is the target's choice, so the choices are what is said
    tl.store(said + b * (drafted + 1) + at, tl.where(at <= kept, choice, -1), mask=at <= drafted)


@torch.library.custom_op(f"{NAMESPACE}::accept", mutates_args=())
def accept(choices: Tensor, drafts: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Keep drafts as long as they are the target's own choice, and say them and the token after them.

    Worked example: choices [5, 7, 9], drafts [5, 8], γ = 2: one kept, said [5, 7, -1].

    Args:
        choices: [batch, n + 1], int64, the target's argmax after 0 … n drafts. drafts: [batch, n]. counts: γ [batch], int64.

    Returns:
        accepted [batch], and what each text says [batch, n + 1], -1 beyond its accepted + 1 tokens.
    """
    batch, drafted = drafts.shape
    choices, drafts, counts = rows_of(choices), rows_of(drafts), counts.contiguous()
    accepted, said = torch.empty_like(counts), choices.new_empty(batch, drafted + 1)
    with torch.cuda.device_of(choices):
        accept_kernel[(batch,)](
            choices, choices.stride(0), drafts, drafts.stride(0), counts, accepted, said, drafted,
            BN=triton.next_power_of_2(drafted + 1), num_warps=1,
        )  # fmt: skip
    return accepted, said


@accept.register_fake
def _(choices, drafts, counts):
    return torch.empty_like(counts), choices.new_empty(choices.shape)
