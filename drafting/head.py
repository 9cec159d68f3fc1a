"""Domino's causal head over one block, for any number of lanes a row, in plain PyTorch.

Letters of the paper (arXiv 2605.29707, section 3): H_i backbone output of slot i, S GRU state, E_j token embedding,
W1 and W2 the two factors of the correction, L_i = L_i^base + W2 SiLU(W1 [H_i ; S]). A lane is a path of drafts; R rows, W lanes each.
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F

from . domino_parts import DominoParts, Embed  # fmt: skip  # isort: skip
from .. acceleration.packed_weights import product  # fmt: skip  # isort: skip
from .. acceleration.watched import Watched  # fmt: skip  # isort: skip


def gru_gates(x: Tensor, own: Tensor, state: Tensor) -> Tensor:
    """Consume one token: S' = GRU(E_j, S), no bias, gate order r, z, n.

    Args:
        x: [..., 3 * gru], E_j W_ihᵀ of the consumed token. own: [..., 3 * gru], S W_hhᵀ. state: [..., gru], S before it.

    Returns:
        [..., gru], S after it.
    """
    width = state.shape[-1]
    r, z = (x[..., : 2 * width] + own[..., : 2 * width]).sigmoid().split(width, dim=-1)
    n = torch.tanh(x[..., 2 * width :] + r * own[..., 2 * width :])
    return torch.lerp(n, state, z)  # (1 - z) n + z S


def split_w1(w1: Tensor, hidden_size: int) -> tuple[Tensor, Tensor]:
    """W1 as its hidden part W_z and state part W_s, so that W_z H is one product for the whole block.

    W1 is [rank, hidden + gru] and its input order is [H ; S]: with hidden 576 and gru 256, columns 0 … 575 meet H and
    columns 576 … 831 meet S.
    """
    return w1[:, :hidden_size], w1[:, hidden_size:]


def candidate_pool(base_logits: Tensor, size: int) -> Tensor:
    """The tokens a block's drafts come from: the likeliest by base logits, over all its slots.

    Args:
        base_logits: [R, n, vocab].

    Returns:
        [R, size], ids.
    """
    return base_logits.amax(dim=1).topk(size, dim=-1, sorted=False).indices


@dataclass(frozen=True)
class Lanes:
    """GRU states S [R, W, gru] of some paths, and what the next step needs of them: S W_hhᵀ [R, W, 3 gru] and W_s S [R, W, rank]."""

    state: Tensor
    own: Tensor
    code: Tensor

    def pick(self, lanes: Tensor) -> "Lanes":
        """The lanes [R, W'] of each row."""
        if lanes.shape[0] == 1:
            return Lanes(*(part[:, lanes[0]] for part in (self.state, self.own, self.code)))
        row = torch.arange(lanes.shape[0], device=lanes.device)[:, None]
        return Lanes(*(part[row, lanes] for part in (self.state, self.own, self.code)))


class HeadWeights:
    """A drafter's head as the steps read it: products with W_ih, with W_hh above W_s (both meet the same S) and with W_z, and W2.

    Args:
        draft: the `DominoModel`.
    """

    def __init__(self, draft: DominoParts) -> None:
        gru, self.prefix = draft.prefix_gru, draft.config.pure_draft_prefix_len
        w_z, w_s = split_w1(draft.embed_proj.get_parameter("0.weight"), draft.config.hidden_size)
        self.width, self.w2 = gru.hidden_size, draft.embed_proj.get_parameter("2.weight")
        self.w_z, self.w_ih = product(w_z), product(gru.get_parameter("weight_ih_l0"))
        self.recurrent = product(torch.cat([gru.get_parameter("weight_hh_l0"), w_s]))
        self.corrects = self.prefix < draft.config.num_drafts  # a DFlash drafter needs no state


# Drafter -> (the weights its head was made of, its head); neither holds the drafter.
_known: WeakKeyDictionary = WeakKeyDictionary()


@torch.no_grad()
def head_weights(draft: DominoParts) -> HeadWeights:
    """The head of a drafter for one call; on a CPU, where weights are packed, made once and again when they have changed."""
    if draft.device.type != "cpu":
        return HeadWeights(draft)
    gru, correction = draft.prefix_gru, draft.embed_proj
    copied = [*map(gru.get_parameter, ("weight_ih_l0", "weight_hh_l0")), correction.get_parameter("0.weight")]
    known = _known.get(draft)
    if known is None or known[1].w2 is not correction.get_parameter("2.weight") or not known[0].unchanged(copied):
        known = _known[draft] = Watched(copied), HeadWeights(draft)
    return known[1]


class BlockHead:
    """The head of one block.

    Draft i (1-based) comes from L_i = base_i, plus the correction when i > pure_draft_prefix_len, with the GRU state that has consumed
    the anchor and drafts 1 … i-1. Worked example, prefix length 1, anchor x:
        d1 ~ base_1;   S = GRU(x, d1),     d2 ~ base_2 + Δ(H_2, S);   S = GRU(x, d1, d2), d3 ~ base_3 + Δ(H_3, S).
    Both label layouts read the same way once the unused slot 0 of the fill-in layout is cut off.

    Args:
        weights: of the drafter. hidden: [R, n, hidden], backbone output H of the drafting slots. base_logits: [R, n, vocab], at least
            float32. embed: token ids [R, W] -> target embeddings [R, W, hidden] on the draft's device.
        pool: drafts come from this many tokens only, the likeliest of the block by base logits; 0 is all.
    """

    def __init__(
        self,
        weights: HeadWeights,
        hidden: Tensor,
        base_logits: Tensor,
        embed: Embed,
        pool: int = 0,
    ) -> None:
        self.weights, self.embed = weights, embed
        self.vocab, self.drafts = base_logits.shape[-1], hidden.shape[1]
        self.z, self.base = weights.w_z(hidden), base_logits
        self.w2: Tensor = weights.w2
        self.ids: Tensor | None = None
        if 0 < pool < self.vocab:
            # sorted, so that of equal logits the lowest token comes first, as over the vocabulary
            self.ids = candidate_pool(base_logits, pool).sort(dim=-1).values
            self.w2 = weights.w2[self.ids.to(weights.w2.device)]  # [R, pool, rank]
            self.base = base_logits.gather(2, self.ids[:, None].expand(-1, hidden.shape[1], -1))

    def begin(self, anchors: Tensor) -> Lanes:
        """One lane a row, which has consumed the anchor [R, 1]."""
        shape = anchors.shape[0], 1
        nothing = Lanes(
            self.z.new_zeros(*shape, self.weights.width),
            self.z.new_zeros(*shape, 3 * self.weights.width),
            self.z[:, :1],
        )
        return self.step(nothing, anchors)

    def step(self, lanes: Lanes, tokens: Tensor) -> Lanes:
        """Every lane consumes a token [R, W]."""
        if not self.weights.corrects:
            return lanes
        state = gru_gates(self.weights.w_ih(self.embed(tokens)), lanes.own, lanes.state)
        own, code = self.weights.recurrent(state).split([3 * self.weights.width, self.z.shape[-1]], dim=-1)
        return Lanes(state, own, code)

    def logits(self, place: int, lanes: Lanes) -> Tensor:
        """What draft `place` (from 0) of each lane comes from, [R, W, m] over the pool or the vocabulary."""
        base = self.base[:, place, None].expand(-1, lanes.state.shape[1], -1)
        if place < self.weights.prefix:
            return base
        code = F.silu(self.z[:, place, None] + lanes.code)
        change = F.linear(code, self.w2) if self.w2.dim() == 2 else torch.bmm(code, self.w2.transpose(1, 2))
        return base + change.to(base)

    def ids_of(self, places: Tensor) -> Tensor:
        """Tokens at places [R, k] of the pool."""
        return places if self.ids is None else self.ids.gather(1, places)

    def wide(self, logits: Tensor) -> Tensor:
        """Logits [R, W, m] of the pool over the vocabulary, -inf elsewhere."""
        if self.ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:2], self.vocab), -torch.inf)
        return whole.scatter_(2, self.ids[:, None].expand(-1, logits.shape[1], -1), logits)

    def narrow(self, logits: Tensor) -> Tensor:
        """Logits [R, W, vocab] at the pool's tokens."""
        if self.ids is None:
            return logits
        return logits.gather(2, self.ids[:, None].expand(-1, logits.shape[1], -1))


def greedy_chain(head: BlockHead, anchors: Tensor) -> Tensor:
    """The likeliest draft of each place after those before it: ids [R, n] behind the anchors [R, 1]."""
    lanes, drafts = head.begin(anchors), list[Tensor]()
    for place in range(head.drafts):
        if drafts:
            lanes = head.step(lanes, drafts[-1])
        drafts.append(head.ids_of(head.logits(place, lanes)[:, 0].argmax(dim=-1, keepdim=True)))
    return torch.cat(drafts, dim=1)
