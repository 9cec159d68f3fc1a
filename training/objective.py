"""Domino's training objective (paper, section 3): teacher-forced head, positional weights, base-anchored curriculum.

    L = (1 - λ) L_final + λ L_base,   L_x = Σ w · loss_x / Σ w

over all drafts of all blocks; `final` are the corrected logits L_i, `base` the backbone's own. The switches of
`ObjectiveSettings` exchange one part each: the weights w, the labels, the tokens the GRU reads, the head, the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ..modeling_domino import DominoModel
from .blocks import Blocks, block_mask, build_blocks
from .config import ObjectiveSettings
from .losses.labels import hard, per_draft, target_log_probs
from .losses.prefix import self_generated
from .losses.weights import auf, decay, dpace
from .target import TargetHead
from .vocabulary import Draw, SampledVocabulary, WholeVocabulary

COUNTS = ("blocks", "drafts", "weight", "final_loss", "base_loss", "final_hits", "base_hits", "final_run", "base_run")


@dataclass
class Slots:
    """What the losses of M blocks need, n drafts each; every tensor leads with [M, n].

    Attributes:
        hidden: [M, n, hidden], H of the drafting slots. code: [M, n, rank], SiLU(W1 [H ; S]), zero in the pure prefix; None
            without the head. labels: [M, n], in the step's vocabulary. exists: [M, n].
        target_hidden: [M, n, hidden], what the target's LM head reads where it predicts the labels; None with hard labels.
    """

    hidden: Tensor
    code: Tensor | None
    labels: Tensor
    exists: Tensor
    target_hidden: Tensor | None

    def part(self, rows: slice) -> Slots:
        """The same for some of the blocks."""
        values = (self.hidden, self.code, self.labels, self.exists, self.target_hidden)
        return Slots(*(None if value is None else value[rows] for value in values))


class DominoForTraining(DominoModel):
    """A drafter whose `forward` is the objective. Its parameters have the drafter's names, so a checkpoint is a drafter.

    Args:
        config: of the drafter. head: the target's frozen embedding and LM head. vocabulary: of the loss.
        settings: the `objective` section of the training config.
    """

    def __init__(
        self, config, head: TargetHead, vocabulary: WholeVocabulary | SampledVocabulary, settings: ObjectiveSettings
    ):
        super().__init__(config)
        self.target_head, self.vocabulary, self.objective = head, vocabulary, settings
        if not settings.head:
            self.prefix_gru.requires_grad_(False)
            self.embed_proj.requires_grad_(False)

    def get_input_embeddings(self) -> None:
        """None: a drafter has no embeddings of its own (accelerate asks when it shards)."""

    def get_output_embeddings(self) -> None:
        """None."""

    def forward(
        self,
        input_ids: Tensor,
        lengths: Tensor,
        anchors: Tensor,
        features: Tensor,
        lam: float,
        seed: int = 0,
        total_weight: float | None = None,
        last_hidden: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """The objective on a batch.

        Args:
            input_ids: [batch, T], right-padded. lengths: [batch]. anchors: [batch, A], -1 for none.
            features: [batch, T, F * hidden]. lam: λ. seed: of the sampled vocabulary.
            total_weight: Σ of the decay weights over all batches of the optimizer step, on all processes; default: this
                batch's own. Parts of a step so add up to the step's weighted mean instead of a mean of means.
            last_hidden: [batch, T, hidden], for soft labels.

        Returns:
            `loss`. The counts of the batch are in `counts` [len(COUNTS)]: float32 sums, so that they can be added over steps and
            processes, and no output, since FSDP rounds outputs to its own dtype.
        """
        blocks = build_blocks(input_ids, lengths, anchors, self.config)
        slots, draw = self._slots(blocks, features, last_hidden, seed)
        w2 = draw.rows(self.embed_proj[2].weight)
        sums, self.counts = self._add_up(slots, draw, w2)

        final, final_weight, base, base_weight = sums
        total = base_weight if total_weight is None else total_weight
        # Weights that depend on the predictions still give a mean of their own, shared out by the decay weights.
        share = (base_weight + 1e-6) / (total + 1e-6)
        final, base = final / (final_weight + 1e-6), base / (base_weight + 1e-6)
        return {"loss": ((1 - lam) * final + lam * base) * share}

    def decay_weight(self, lengths: Tensor, anchors: Tensor) -> Tensor:
        """Σ of the decay weights of a batch, known before any forward."""
        n = self.config.num_drafts
        labels = (lengths[:, None] - 1 - anchors).clamp(max=n)  # of each anchor that exist
        weights = decay(n, self.objective.gamma, torch.zeros((), device=lengths.device))
        reached = torch.arange(1, n + 1, device=lengths.device) <= labels[..., None]
        return (weights * reached * (anchors >= 0)[..., None]).sum()

    def _slots(self, blocks: Blocks, features: Tensor, last_hidden: Tensor | None, seed: int) -> tuple[Slots, Draw]:
        """Backbone and GRU over all blocks of the batch; M blocks have at least one label."""
        config, dtype = self.config, self._compute_dtype(features)
        mask = block_mask(blocks.anchors, features.shape[1], config.block_size, self.objective.attention)
        noise = self.target_head.embed(blocks.block_ids).flatten(1, 2).to(dtype)
        out = super().forward(noise, features.to(dtype), mask, blocks.position_ids).last_hidden_state
        slots = slice(config.first_slot, config.first_slot + config.num_drafts)
        used = blocks.exists[..., 0]
        hidden = out.view(*blocks.block_ids.shape, -1)[:, :, slots][used]

        draw = self.vocabulary.draw(blocks.labels[used], seed)
        target_hidden = None
        if self.objective.labels != "hard":
            rows = torch.arange(len(used), device=used.device)[:, None, None]
            target_hidden = last_hidden[rows, blocks.sources][used]
        code = self._code(hidden, blocks.prefix_ids[used]) if self.objective.head else None
        return Slots(hidden, code, draw.labels, blocks.exists[used], target_hidden), draw

    def _compute_dtype(self, like: Tensor) -> torch.dtype:
        kind = like.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.fc.weight.dtype

    def _code(self, hidden: Tensor, prefix_ids: Tensor) -> Tensor:
        """SiLU(W1 [H ; S]) of all drafts [M, n, rank], zero in the pure prefix."""
        config = self.config
        if self.objective.prefix == "self":
            parts = zip(
                hidden.split(self.objective.chunk_blocks), prefix_ids.split(self.objective.chunk_blocks), strict=True
            )
            embed, logits = self._embed_for_gru, self.target_head.logits
            prefix_ids = torch.cat([self_generated(self, h, ids[:, :1], embed, logits) for h, ids in parts])
        with torch.autocast(
            hidden.device.type, enabled=False
        ):  # on CUDA it would make this float16, whatever was asked for
            states, _ = self.prefix_gru(self._embed_for_gru(prefix_ids))
        code = F.silu(self.embed_proj[0](torch.cat([hidden, states.to(hidden.dtype)], dim=-1)))
        corrected = torch.arange(config.num_drafts, device=code.device) >= config.pure_draft_prefix_len
        return code * corrected[:, None].to(code.dtype)

    def _embed_for_gru(self, ids: Tensor) -> Tensor:
        """The GRU runs outside of autocast, so its input follows its weights by hand."""
        return self.target_head.embed(ids).to(self.prefix_gru.weight_ih_l0.dtype)

    def _add_up(self, slots: Slots, draw: Draw, w2: Tensor) -> tuple[Tensor, Tensor]:
        """Sums over all blocks, a chunk at a time: logits exist for one chunk only and are recomputed for the gradient."""
        size, blocks = self.objective.chunk_blocks, len(slots.labels)
        if blocks <= size:
            return self._chunk(slots, draw, w2)
        sums, counts = zip(
            *(
                checkpoint(self._chunk, slots.part(slice(at, at + size)), draw, w2, use_reentrant=False)
                for at in range(0, blocks, size)
            ),
            strict=True,
        )
        return torch.stack(sums).sum(0), torch.stack(counts).sum(0)

    def _chunk(self, slots: Slots, draw: Draw, w2: Tensor) -> tuple[Tensor, Tensor]:
        """(Σ w·final, Σ w of final, Σ w·base, Σ w of base) and the counts of some blocks."""
        settings = self.objective
        base = draw.weigh(self.target_head.logits(slots.hidden, draw.ids))
        final = base if slots.code is None else base + F.linear(slots.code, w2)
        log_p = None
        if slots.target_hidden is not None:
            log_p = target_log_probs(draw.weigh(self.target_head.logits(slots.target_hidden, draw.ids)))

        losses, nlls, hits = [], [], []
        for logits in (final, base):
            hits.append((logits.detach()[..., : draw.exact].argmax(-1) == slots.labels) & slots.exists)
            log_q = target_log_probs(logits)
            losses.append(per_draft(log_q, slots.labels, log_p, settings.labels, settings.soft_weight))
            nlls.append(hard(log_q.detach(), slots.labels))
        decayed = decay(slots.labels.shape[1], settings.gamma, losses[0]) * slots.exists
        weights = decayed
        if settings.weights == "auf":
            weights = auf(decayed, hits[0])
        elif settings.weights == "dpace":
            weights = dpace(nlls[0], slots.exists)
        sums = [(losses[0] * weights).sum(), weights.sum(), (losses[1] * decayed).sum(), decayed.sum()]
        return torch.stack(sums), _counts(decayed, nlls, hits, slots.exists)


def _counts(decayed: Tensor, nlls: list[Tensor], hits: list[Tensor], exists: Tensor) -> Tensor:
    """Sums of one chunk in the order of `COUNTS`; a run is the teacher-forced acceptance length of a block."""
    runs = [hit.long().cumprod(-1).sum() + len(hit) for hit in hits]
    values = [len(exists), exists.sum(), decayed.sum(), *((nll * decayed).sum() for nll in nlls)]
    values += [*(hit.sum() for hit in hits), *runs]
    return torch.stack([torch.as_tensor(v, dtype=torch.float32, device=decayed.device) for v in values])


def rates(counts: Tensor) -> dict[str, float]:
    """Readable figures of summed counts: losses per weight, accuracies per draft, acceptance lengths per block."""
    c = dict(zip(COUNTS, counts.double().tolist(), strict=True))
    figures = {f"{name}_loss": c[f"{name}_loss"] / max(c["weight"], 1e-9) for name in ("final", "base")}
    figures |= {f"{name}_accuracy": c[f"{name}_hits"] / max(c["drafts"], 1) for name in ("final", "base")}
    return figures | {f"{name}_accept": c[f"{name}_run"] / max(c["blocks"], 1) for name in ("final", "base")}
