"""The drafting side of transformers' assisted decoding."""

from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import CandidateGenerator, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria
from transformers.modeling_outputs import CausalLMOutputWithPast

from .. drafting.calibration import Calibration  # fmt: skip  # isort: skip
from .. drafting.domino import DraftContext  # fmt: skip  # isort: skip
from .. drafting.drafter import Drafter, Picking, Wanted  # fmt: skip  # isort: skip
from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. drafting.proposal import Sampled  # fmt: skip  # isort: skip
from .. verification.features import feature_entries, feature_states  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class DominoCandidateGenerator(CandidateGenerator):
    """Drafts one block per round from the features of the target's last forward.

    Greedy: drafts are argmax and no q is returned, so they are compared with the target's argmax. Sampling: each draft is
    sampled from Domino's causal q after the processors and warpers that shape p, and exactly that q is returned, which
    makes transformers' accept rule (Leviathan et al., arXiv 2211.17192) exact.

    The loop looks at the stopping criteria once per round, after the bonus token, so no accepted draft may be one that ends
    the generation. How that is kept without bending the distribution:
    - greedy: the block ends before such a draft; it can still come as the bonus token.
    - sampling: ending the block because of *what was sampled* would be biased (with p = q an end token of probability p
      would come with p squared), so end tokens are taken out of q before the draw; they come by the residual.
    - sampling with stop strings or criteria of the caller: which tokens stop is not known before the draw. The call drafts
      greedily and returns no q: transformers then draws from p itself and compares, which is exact wherever a block ends.

    Args:
        draft: the `DominoModel`.
        target: the model that verifies; its embedding and LM head are used.
        generation_config: of the `generate` call; `num_assistant_tokens` bounds the draft length.
        logits_processor: processors and warpers of the call.
        stopping_criteria: criteria of the call.
        context: draft cache to continue when the target's cache is continued, else None.
        statistics: filled as the call proceeds.
    """

    requires_model_outputs = True

    def __init__(
        self,
        draft: Drafter,
        target: PreTrainedModel,
        generation_config: GenerationConfig,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        context: DraftContext | None,
        statistics: DraftStatistics,
    ) -> None:
        self.draft, self.target, self.statistics = draft, target, statistics
        self.config = draft.config
        self.logits_processor = logits_processor or LogitsProcessorList()
        self.max_length = generation_config.max_length
        limit = generation_config.num_assistant_tokens
        self.max_drafts = min(self.config.num_drafts, limit if limit is not None else self.config.num_drafts)
        eos = [c.eos_token_id for c in stopping_criteria if isinstance(c, EosTokenCriteria)]
        self.eos_ids = torch.cat(eos).tolist() if eos else []
        # The length is kept by the number of drafts; the clock is the loop's own business.
        known = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)
        self.criteria = [c for c in stopping_criteria if not isinstance(c, known)]
        self.samples_drafts = generation_config.do_sample and not self.criteria
        banned = tuple(self.eos_ids) if self.samples_drafts else ()
        # criteria of the caller are asked about every draft
        plan = plan_for(self.logits_processor, target.get_input_embeddings(), self.samples_drafts, banned)
        self.picking = Picking(
            self.samples_drafts,
            self._process if self.logits_processor else None,
            blind=False,
            banned=banned,
            ends=frozenset(() if self.samples_drafts else self.eos_ids),
            plan=None if self.criteria else plan,
        )
        self.calibration = Calibration()
        self.session = draft.open(target, 1, target.device, context=context)
        self.context = self.session.cache
        self.model_kwargs_overrides = {
            "output_hidden_states": True
            if generation_config.output_hidden_states
            else feature_entries(self.config.target_layer_ids)
        }

    @torch.no_grad()
    def get_candidates(  # type: ignore[override]  # all that the loop hands over by name is named
        self,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        model_outputs: CausalLMOutputWithPast,
        is_first_iteration: bool,
        n_last_matches: int,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Candidates for one verification.

        Args:
            input_ids: [1, length], everything emitted; the last token is the anchor and not yet in the target's cache.
            model_outputs: the target's last forward.
            n_last_matches: drafts it accepted.

        Returns:
            [1, length + n] ids and, when drafts are sampled, q [1, n, vocab] as processed logits.
        """
        if is_first_iteration:  # nothing to draft from before the prefill
            return input_ids, None
        after_prefill = not self.statistics.drafted
        features = self._features(model_outputs, input_ids, model_kwargs, None if after_prefill else n_last_matches + 1)
        room = min(self.max_drafts, self.max_length - input_ids.shape[1] - 1)  # the bonus token needs a place too
        if room <= 0:
            self.statistics.drafted.append(0)
            return input_ids, None

        self.context.verified_ids = input_ids
        drafts, q = self._draft_block(input_ids, features, room)
        self.statistics.drafted.append(drafts.shape[1])
        if drafts.shape[1] == 0:
            return input_ids, None
        return torch.cat([input_ids, drafts], dim=-1), q if self.samples_drafts else None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """Record a round: `drafted` is one ahead of `accepted` exactly when a round was put to the target."""
        if len(self.statistics.drafted) > len(self.statistics.accepted):
            self.statistics.accepted.append(int(num_matches))

    def _features(
        self, outputs: CausalLMOutputWithPast, input_ids: Tensor, model_kwargs: dict, kept: int | None
    ) -> tuple[Tensor, Tensor]:
        """Features [1, n, F * hidden] of the newly verified tokens and their positions [1, n], padding left out.

        `kept` None takes the whole prefill. Worked example: 10 tokens emitted, the last forward read columns 6 … 9 (old
        anchor and 3 drafts) of which 1 draft was accepted: kept = 2, columns 6 and 7 are context now, column 8 is the new
        anchor, so input_ids has 9 columns and the features' columns are 9 - 1 - 2 … 9 - 1.
        """
        layers = self.target.config.get_text_config().num_hidden_layers
        assert outputs.hidden_states is not None  # they were asked for: `model_kwargs_overrides`
        states = feature_states(outputs.hidden_states, self.config.target_layer_ids, layers)
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

    def _draft_block(
        self, input_ids: Tensor, features: tuple[Tensor, Tensor], count: int
    ) -> tuple[Tensor, Tensor | None]:
        """Draft up to `count` tokens: drafts [1, m], and when they are sampled the probabilities they were drawn from as logits [1, m, vocab]."""
        states, positions = features
        if states.shape[1]:
            # the context may lack what was said without the drafter
            self.context.gaps = [int(positions[0, 0]) - self.context.lengths[0]]
            self.session.add(states, [states.shape[1]])
        self.text = input_ids
        wanted = Wanted(count, [count], 0.0, chain=True, calibration=self.calibration)
        proposal = self.session.propose(input_ids[:, -1:], wanted, self.picking)
        drafts = proposal.tokens(input_ids.device)
        if proposal.law is not None:  # the last place may have a law of which nothing could be drawn
            return drafts, self._logits(proposal.law)[:, : drafts.shape[1]]
        return drafts[:, : self._until_end(input_ids, drafts)], None

    def _logits(self, law: Sampled) -> Tensor:
        """q [1, n, vocab] as logits."""
        logits = law.q.log()
        if law.ids is None:
            return logits
        whole = logits.new_full((*logits.shape[:2], self.config.vocab_size), -torch.inf)
        return whole.scatter_(2, law.ids[:, None].expand(-1, logits.shape[1], -1), logits)

    def _process(self, logits: Tensor, paths: list[list[list[int] | None]]) -> Tensor:
        """Processed logits [1, W, vocab], each after its path."""
        ids = [torch.cat([self.text[0], self.text.new_tensor(path)])[None] for path in paths[0]]
        # LongTensor is transformers' name for a tensor of int64
        each = [self.logits_processor(cast(torch.LongTensor, text), logits[:, at]) for at, text in enumerate(ids)]
        return torch.stack(each, dim=1)

    def _until_end(self, input_ids: Tensor, drafts: Tensor) -> int:
        """Drafts before the first that would end the generation."""
        for place in range(drafts.shape[1]):
            if self._ends(torch.cat([input_ids, drafts[:, : place + 1]], dim=-1)):
                return place
        return drafts.shape[1]

    def _ends(self, ids: Tensor) -> bool:
        if self.eos_ids and int(ids[0, -1]) in self.eos_ids:
            return True
        return any(bool(torch.as_tensor(criterion(ids, None)).any()) for criterion in self.criteria)
