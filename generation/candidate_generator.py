"""The drafting side of transformers' assisted decoding."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation import CandidateGenerator, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from . rollout import rollout  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class DominoCandidateGenerator(CandidateGenerator):
    """Drafts one block per round from the features of the target's last forward.

    Greedy: drafts are argmax and no q is returned, so they are compared with the target's argmax. Sampling: each draft is
    sampled from Domino's causal q after the processors and warpers that shape p, and exactly that q is returned, which
    makes transformers' accept rule (Leviathan et al., arXiv 2211.17192) exact.

    Args:
        draft: the `DominoModel`.
        target: the model that verifies; its embedding and LM head are used.
        generation_config: of the `generate` call; `num_assistant_tokens` bounds the draft length.
        logits_processor: processors and warpers of the call.
        stopping_criteria: criteria of the call.
        context: draft cache to continue when the target's cache is continued, else an empty one.
        statistics: filled as the call proceeds.
    """

    requires_model_outputs = True

    def __init__(
        self,
        draft,
        target,
        generation_config,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        context: DynamicCache,
        statistics: DraftStatistics,
    ):
        self.draft, self.target, self.context, self.statistics = draft, target, context, statistics
        self.config = draft.config
        self.logits_processor = logits_processor or LogitsProcessorList()
        self.do_sample = generation_config.do_sample
        self.max_length = generation_config.max_length
        limit = generation_config.num_assistant_tokens
        self.max_drafts = min(self.config.num_drafts, limit if limit is not None else self.config.num_drafts)
        # Length is kept by `_room`; the clock is the loop's own business.
        self.criteria = [c for c in stopping_criteria if not isinstance(c, (MaxLengthCriteria, MaxTimeCriteria))]
        # A list keeps these hidden states only. Up to transformers 5.17 entry i of a list is layer i's output, later it is
        # entry i + 1, the embedding being entry 0: ask for both, `_features` tells by the length what came.
        layers = sorted({entry for i in self.config.target_layer_ids for entry in (i, i + 1)})
        self.model_kwargs_overrides = {
            "output_hidden_states": True if generation_config.output_hidden_states else layers
        }

    @torch.no_grad()
    def get_candidates(
        self,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        model_outputs,
        is_first_iteration: bool,
        n_last_matches: int,
        **kwargs,
    ) -> tuple[Tensor, Tensor | None]:
        """Candidates for one verification.

        Args:
            input_ids: [1, length], everything emitted; the last token is the anchor and not yet in the target's cache.
            model_outputs: the target's last forward.
            n_last_matches: drafts it accepted.

        Returns:
            [1, length + n] ids and, when sampling, q [1, n, vocab] as processed float32 logits.
        """
        if is_first_iteration:  # nothing to draft from before the prefill
            return input_ids, None
        prefill = not self.statistics.accepted and not self.statistics.drafted
        features = self._features(model_outputs, input_ids, model_kwargs, None if prefill else n_last_matches + 1)
        room = min(self.max_drafts, self.max_length - input_ids.shape[1] - 1)  # the bonus token needs a place too
        if room <= 0:
            self.statistics.drafted.append(0)
            return input_ids, None

        drafts, q = self._draft_block(input_ids, features, room)
        kept = self._before_first_stop(input_ids, drafts)
        self.statistics.drafted.append(kept)
        if kept == 0:
            return input_ids, None
        candidates = torch.cat([input_ids, drafts[:, :kept]], dim=-1)
        return candidates, q[:, :kept] if self.do_sample else None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Record a round: `drafted` is one ahead of `accepted` exactly when a round was put to the target."""
        if len(self.statistics.drafted) > len(self.statistics.accepted):
            self.statistics.accepted.append(int(num_matches))

    def _features(self, outputs, input_ids: Tensor, model_kwargs: dict, kept: int | None) -> tuple[Tensor, Tensor]:
        """Features [1, n, F * hidden] of the newly verified tokens and their positions [1, n], padding left out.

        `kept` None takes the whole prefill. Worked example: 10 tokens emitted, the last forward read columns 6 … 9 (old
        anchor and 3 drafts) of which 1 draft was accepted: kept = 2, columns 6 and 7 are context now, column 8 is the new
        anchor, so input_ids has 9 columns and the features' columns are 9 - 1 - 2 … 9 - 1.
        """
        embedding = (
            len(outputs.hidden_states) - self.target.config.get_text_config().num_hidden_layers
        )  # 1 or 0 entries
        states = [outputs.hidden_states[i + embedding] for i in self.config.target_layer_ids]
        kept = states[0].shape[1] if kept is None else kept
        features = torch.cat([s[:, :kept].to(self.draft.device, self.draft.dtype) for s in states], dim=-1)
        last = input_ids.shape[1] - 1
        mask = model_kwargs.get("attention_mask")
        if mask is None:
            positions = torch.arange(last - kept, last, device=features.device)[None]
            return features, positions
        mask = mask.to(features.device)
        real = mask[0, last - kept : last].bool()
        positions = mask.cumsum(-1)[:, last - kept : last] - 1
        return features[:, real], positions[:, real]

    def _draft_block(self, input_ids: Tensor, features: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
        """Draft `count` tokens. Returns drafts [1, count] and the logits they were picked from [1, count, vocab]."""
        embedding, head = self.target.get_input_embeddings(), self.target.get_output_embeddings()

        def embed(ids: Tensor) -> Tensor:
            return embedding(ids.to(embedding.weight.device)).to(self.draft.device, self.draft.dtype)

        def pick(logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
            if self.logits_processor:
                logits = self.logits_processor(torch.cat([input_ids, drafts], dim=-1), logits)
            if self.do_sample:
                return torch.multinomial(logits.softmax(dim=-1), num_samples=1), logits
            return logits.argmax(dim=-1, keepdim=True), logits

        anchor = input_ids[:, -1:]
        masks = anchor.new_full((1, self.config.block_size - 1), self.config.mask_token_id)
        hidden = self.draft.draft_block(embed(torch.cat([anchor, masks], dim=-1)), *features, self.context)
        hidden = hidden[:, self.config.first_slot : self.config.first_slot + count]
        base = head(hidden.to(head.weight.device, head.weight.dtype)).to(input_ids.device)
        base = base.to(torch.promote_types(base.dtype, torch.float32))
        return rollout(self.draft, hidden, base, anchor, embed, pick)

    def _before_first_stop(self, input_ids: Tensor, drafts: Tensor) -> int:
        """How many drafts come before the first one that would end the generation.

        The loop looks at the stopping criteria once per round, after the bonus token. A draft that stops must therefore
        never be an accepted one: cut there, it can still arrive as the bonus token, where it ends the call as it should.
        """
        count = drafts.shape[1]
        for criterion in self.criteria:
            if isinstance(criterion, EosTokenCriteria):
                ends = torch.isin(drafts[0, :count], criterion.eos_token_id.to(drafts.device)).nonzero()
                count = int(ends[0]) if len(ends) else count
                continue
            for i in range(count):
                if bool(criterion(torch.cat([input_ids, drafts[:, : i + 1]], dim=-1), None).any()):
                    count = i
                    break
        return count
