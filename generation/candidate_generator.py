"""The drafting side of transformers' assisted decoding."""

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.generation import CandidateGenerator, LogitsProcessorList, StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria

from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. verification.features import feature_entries, feature_states  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip


class DraftContext(DynamicCache):
    """Keys and values of the verified context per draft layer, and the ids [1, length] it was last drafted for."""

    verified_ids: Tensor | None = None


class Pick:
    """Picks the drafts of one block for `rollout`; `plan` says so where a rollout in one launch can do it."""

    def __init__(self, generator: "DominoCandidateGenerator", input_ids: Tensor, embedding):
        self.input_ids, samples = input_ids, generator.samples_drafts
        self.pick = generator._sample if samples else generator._argmax
        banned = generator.eos_ids if samples else ()
        # criteria of the caller are asked about every draft
        self.plan = None if generator.criteria else plan_for(generator.logits_processor, embedding, samples, banned)

    def __call__(self, logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.pick(self.input_ids, logits, drafts)


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
        context: DraftContext,
        statistics: DraftStatistics,
    ):
        self.draft, self.target, self.context, self.statistics = draft, target, context, statistics
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
        self.model_kwargs_overrides = {
            "output_hidden_states": True
            if generation_config.output_hidden_states
            else feature_entries(self.config.target_layer_ids)
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

    def _features(self, outputs, input_ids: Tensor, model_kwargs: dict, kept: int | None) -> tuple[Tensor, Tensor]:
        """Features [1, n, F * hidden] of the newly verified tokens and their positions [1, n], padding left out.

        `kept` None takes the whole prefill. Worked example: 10 tokens emitted, the last forward read columns 6 … 9 (old
        anchor and 3 drafts) of which 1 draft was accepted: kept = 2, columns 6 and 7 are context now, column 8 is the new
        anchor, so input_ids has 9 columns and the features' columns are 9 - 1 - 2 … 9 - 1.
        """
        layers = self.target.config.get_text_config().num_hidden_layers
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
        """Draft up to `count` tokens. Returns drafts [1, m] and the logits they were picked from [1, m, vocab], see `rollout`."""
        embedding, head = self.target.get_input_embeddings(), self.target.get_output_embeddings()
        # Offloaded weights lie on "meta"; their hooks move what they are given.
        home = input_ids.device if self.target.device.type == "meta" else self.target.device

        def embed(ids: Tensor) -> Tensor:
            return embedding(ids.to(home)).to(self.draft.device, self.draft.dtype)

        anchor = input_ids[:, -1:]
        masks = anchor.new_full((1, self.config.block_size - 1), self.config.mask_token_id)
        hidden = self.draft.draft_block(embed(torch.cat([anchor, masks], dim=-1)), *features, self.context)
        hidden = hidden[:, self.config.first_slot : self.config.first_slot + count]
        base = head(hidden.to(home, self.target.dtype)).to(input_ids.device)
        base = base.to(torch.promote_types(base.dtype, torch.float32))
        drafts, q = self.draft.rollout(hidden, base, anchor, embed, Pick(self, input_ids, embedding))
        if self.samples_drafts or not self.eos_ids:
            return drafts, q
        # a rollout in one launch does not stop at an end token
        ends = torch.isin(drafts[0], drafts.new_tensor(self.eos_ids)).tolist()
        kept = (ends + [True]).index(True)
        return drafts[:, :kept], None if q is None else q[:, :kept]

    def _process(self, input_ids: Tensor, logits: Tensor, drafts: Tensor) -> Tensor:
        if not self.logits_processor:
            return logits
        return self.logits_processor(torch.cat([input_ids, drafts], dim=-1), logits)

    def _sample(self, input_ids: Tensor, logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor] | None:
        """A draft sampled from q without end tokens; None when q has nothing else."""
        q = self._process(input_ids, logits, drafts)
        if self.eos_ids:
            q = q.clone()
            q[:, self.eos_ids] = -float("inf")
            if bool(q.isneginf().all()):
                return None
        return torch.multinomial(q.softmax(dim=-1), num_samples=1), q

    def _argmax(self, input_ids: Tensor, logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor] | None:
        """The likeliest draft; None when it would end the generation."""
        logits = self._process(input_ids, logits, drafts)
        token = logits.argmax(dim=-1, keepdim=True)
        if self._ends(torch.cat([input_ids, drafts, token], dim=-1)):
            return None
        return token, logits

    def _ends(self, ids: Tensor) -> bool:
        if self.eos_ids and int(ids[0, -1]) in self.eos_ids:
            return True
        return any(bool(torch.as_tensor(criterion(ids, None)).any()) for criterion in self.criteria)
