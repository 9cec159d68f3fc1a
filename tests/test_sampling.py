"""Sampled output has the target's distribution: the joint law of three tokens, enumerated, against 50,000 samples."""

import itertools

import pytest
import torch
from domino.generation.candidate_generator import DominoCandidateGenerator
from domino.modeling_domino import DominoModel
from tiny import make_draft, make_target
from transformers import DynamicCache, GenerationConfig
from transformers.generation import LogitsProcessorList, MaxLengthCriteria, StoppingCriteriaList

VOCAB, SAMPLES = 6, 50_000
TOKENS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
PROMPT = torch.tensor([[1, 4, 2]])
OPTIONS = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}


class GreedyWithQ(DominoCandidateGenerator):
    """The biased rule: greedy drafts handed over with q, as if they had been sampled from it."""

    def _draft_block(self, input_ids, features, count):
        self.do_sample = False
        drafts, q = super()._draft_block(input_ids, features, count)
        self.do_sample = True
        return drafts, q


class BiasedDraft(DominoModel):
    generator_class = GreedyWithQ


def prepare(target) -> tuple[GenerationConfig, LogitsProcessorList]:
    """What `generate` would hand to its decoding loop: four tokens, so that the second and third are both drafted."""
    config, _ = target._prepare_generation_config(
        GenerationConfig(do_sample=True, max_length=PROMPT.shape[1] + 4, pad_token_id=0, **OPTIONS)
    )
    target._prepare_special_tokens(config, True, device="cpu")
    return config, target._get_logits_processor(config, input_ids_seq_length=PROMPT.shape[1], device="cpu")


def exact(target, processors) -> torch.Tensor:
    """P(x1, x2, x3) by enumeration, [VOCAB ** 3]."""
    tails = torch.tensor(list(itertools.product(range(VOCAB), repeat=3)))
    ids = torch.cat([PROMPT.expand(len(tails), -1), tails], dim=-1)
    logits = target(ids).logits.float()
    joint = torch.ones(len(tails))
    for at in range(PROMPT.shape[1], ids.shape[1]):
        p = processors(ids[:, :at], logits[:, at - 1]).softmax(-1)
        joint *= p.gather(1, ids[:, at : at + 1])[:, 0]
    return joint


def sampled(target, draft, config, processors, samples) -> tuple[torch.Tensor, float]:
    """Empirical law of three tokens [VOCAB ** 3] and the share of accepted drafts, over the loop that `generate` runs."""
    counts, accepted, drafted = torch.zeros(VOCAB**3), 0, 0
    criteria = StoppingCriteriaList([MaxLengthCriteria(config.max_length)])
    place = torch.tensor([VOCAB**2, VOCAB, 1])
    for _ in range(samples):
        out = target._assisted_decoding(
            PROMPT,
            logits_processor=processors,
            stopping_criteria=criteria,
            generation_config=config,
            assistant_model=draft,
            past_key_values=DynamicCache(config=target.config),
            use_cache=True,
        )
        counts[(out[0, PROMPT.shape[1] :][:3] * place).sum()] += 1
        accepted += sum(draft.statistics.accepted)
        drafted += draft.statistics.drafted_tokens
    return counts / samples, accepted / drafted


@pytest.fixture(scope="module")
def setup():
    target = make_target(hidden_size=16, intermediate_size=16, num_hidden_layers=1, **TOKENS).float()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_target_layers": 1}

    def draft(cls):
        return make_draft(
            cls=cls, target_layer_ids=[0], mask_token_id=5, block_size=2, initializer_range=0.1, **shape, **TOKENS
        ).float()

    return target, draft, *prepare(target)


@torch.no_grad()
def test_joint_distribution(setup):
    target, draft, config, processors = setup
    truth = exact(target, processors)
    noise = torch.stack(
        [torch.bincount(torch.multinomial(truth, SAMPLES, True), minlength=VOCAB**3) / SAMPLES for _ in range(200)]
    )
    # Total variation of honest samples of this size; a fair rule stays within what 200 of them show.
    limit = ((noise - truth).abs().sum(-1) / 2).max() * 1.1
    measured, rate = sampled(target, draft(DominoModel), config, processors, SAMPLES)
    assert 0.2 < rate < 0.95  # both outcomes are exercised
    assert (measured - truth).abs().sum() / 2 < limit

    # Fewer samples are noisier, sqrt(5) times here, yet the biased rule is far outside of that too.
    biased, _ = sampled(target, draft(BiasedDraft), config, processors, SAMPLES // 5)
    assert (biased - truth).abs().sum() / 2 > 3 * limit


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"repetition_penalty": 1.5},
        {"typical_p": 0.8},
    ],
)
def test_q_is_what_the_drafts_were_sampled_from(setup, options):
    """q equals the warped causal distribution, and each draft lies in its support."""
    target, draft, *_ = setup
    target.generate(PROMPT, assistant_model=(d := draft(RecordingDraft)), do_sample=True, max_new_tokens=12, **options)
    assert d.records
    for drafts, q, processed in d.records:
        assert torch.equal(q, processed)
        assert q.softmax(-1).gather(-1, drafts[..., None]).min() > 0


class Recording(DominoCandidateGenerator):
    """Keeps drafts, returned q and q recomputed through the call's own processors."""

    def get_candidates(self, input_ids, **kwargs):
        self.raw = []
        candidates, q = super().get_candidates(input_ids, **kwargs)
        if q is not None:
            drafts = candidates[:, input_ids.shape[1] :]
            again = [
                self.logits_processor(candidates[:, : input_ids.shape[1] + i], self.raw[i])
                for i in range(drafts.shape[1])
            ]
            self.draft.records.append((drafts, q, torch.stack(again, dim=1)))
        return candidates, q

    def _draft_block(self, input_ids, features, count):
        shaped, processors = super()._draft_block, self.logits_processor

        def spy(ids, logits):
            self.raw.append(logits.clone())
            return processors(ids, logits)

        self.logits_processor = spy
        try:
            return shaped(input_ids, features, count)
        finally:
            self.logits_processor = processors


class RecordingDraft(DominoModel):
    generator_class = Recording

    def __init__(self, config):
        super().__init__(config)
        self.records = []
