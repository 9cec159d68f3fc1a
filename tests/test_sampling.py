"""transformers' assisted loop: sampled output has the target's distribution: the joint law of three tokens, enumerated, against samples of it."""

import itertools
from unittest import mock

import pytest
import torch
from domino.drafting import sampled as drafting
from domino.generation.candidate_generator import DominoCandidateGenerator
from domino.modeling_domino import DominoModel
from tiny import make_draft, make_target, stock
from transformers import DynamicCache, GenerationConfig
from transformers.generation import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

VOCAB, END = 6, 2
TOKENS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
PROMPT = torch.tensor([[1, 4, 2]])
OPTIONS = {"temperature": 0.8, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.3}


def likeliest(head, q: torch.Tensor, most: int) -> torch.Tensor:
    """In place of the draw."""
    return head.ids_of(q.topk(most).indices.flatten(1)).view(*q.shape[:2], most)


class GreedyWithQ(DominoCandidateGenerator):
    """The biased rule: greedy drafts handed over with q, as if they had been sampled from it."""

    def _draft_block(self, input_ids, features, count):
        with mock.patch.object(drafting, "_race", likeliest):
            return super()._draft_block(input_ids, features, count)


class BiasedDraft(DominoModel):
    generator_class = GreedyWithQ


class Says(StoppingCriteria):
    """A caller's own criterion: ends once END has been said."""

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, PROMPT.shape[1] :] == END).any(-1)


def prepare(target, eos: int | None) -> tuple[GenerationConfig, LogitsProcessorList, StoppingCriteriaList]:
    """What `generate` would hand to its decoding loop: four tokens, so that the second and third are both drafted."""
    config, _ = target._prepare_generation_config(
        GenerationConfig(do_sample=True, max_length=PROMPT.shape[1] + 4, pad_token_id=0, eos_token_id=eos, **OPTIONS)
    )
    target._prepare_special_tokens(config, True, device="cpu")
    processors = target._get_logits_processor(config, input_ids_seq_length=PROMPT.shape[1], device="cpu")
    return config, processors, target._get_stopping_criteria(config, StoppingCriteriaList() if eos else [Says()])


def exact(target, processors) -> torch.Tensor:
    """P(x1, x2, x3) by enumeration, [VOCAB ** 3]; END is followed by END only."""
    tails = torch.tensor(list(itertools.product(range(VOCAB), repeat=3)))
    ids = torch.cat([PROMPT.expand(len(tails), -1), tails], dim=-1)
    logits = target(ids).logits.float()
    joint, ended = torch.ones(len(tails)), torch.zeros(len(tails), dtype=torch.bool)
    for at in range(PROMPT.shape[1], ids.shape[1]):
        token = ids[:, at]
        p = processors(ids[:, :at], logits[:, at - 1]).softmax(-1).gather(1, token[:, None])[:, 0]
        joint *= torch.where(ended, (token == END).float(), p)
        ended |= token == END
    return joint


def sampled(target, draft, config, processors, criteria, samples) -> tuple[torch.Tensor, float]:
    """Empirical law of three tokens [VOCAB ** 3] and the share of accepted drafts, over the loop that `generate` runs."""
    counts, accepted, drafted = torch.zeros(VOCAB**3), 0, 0
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
        said = out[0, PROMPT.shape[1] :][:3]
        counts[(torch.nn.functional.pad(said, (0, 3 - len(said)), value=END) * place).sum()] += 1
        accepted += sum(draft.statistics.accepted)
        drafted += draft.statistics.drafted_tokens
    return counts / samples, accepted / drafted


def noise_limit(truth: torch.Tensor, samples: int) -> torch.Tensor:
    """Total variation that honest samples of this size stay within: the worst of 200, and a tenth."""
    drawn = [torch.bincount(torch.multinomial(truth, samples, True), minlength=VOCAB**3) / samples for _ in range(200)]
    return ((torch.stack(drawn) - truth).abs().sum(-1) / 2).max() * 1.1


@pytest.fixture(scope="module")
def setup():
    target = make_target(hidden_size=16, intermediate_size=16, num_hidden_layers=1, **TOKENS).float()
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_target_layers": 1}

    def draft(cls):
        draft = make_draft(
            cls=cls, target_layer_ids=[0], mask_token_id=5, block_size=2, initializer_range=0.1, **shape, **TOKENS
        )
        return stock(draft.float())

    return target, draft


@torch.no_grad()
@pytest.mark.parametrize("samples", [8_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_joint_distribution(setup, samples):
    """With temperature, top-k, top-p, repetition penalty and an end token; the biased rule fails."""
    target, draft = setup
    call = prepare(target, eos=END)
    truth = exact(target, call[1])
    limit = noise_limit(truth, samples)
    measured, rate = sampled(target, draft(DominoModel), *call, samples)
    assert 0.2 < rate < 0.95  # both outcomes are exercised
    assert (measured - truth).abs().sum() / 2 < limit

    # Fewer samples are noisier, twice here, yet the biased rule is far outside of that too.
    biased, _ = sampled(target, draft(BiasedDraft), *call, samples // 4)
    assert (biased - truth).abs().sum() / 2 > 3 * noise_limit(truth, samples // 4)


@torch.no_grad()
@pytest.mark.parametrize("samples", [5_000, pytest.param(25_000, marks=pytest.mark.slow)])
def test_joint_distribution_with_a_criterion_of_the_callers(setup, samples):
    target, draft = setup
    call = prepare(target, eos=None)
    truth = exact(target, call[1])
    measured, rate = sampled(target, draft(DominoModel), *call, samples)
    assert rate > 0.1
    assert (measured - truth).abs().sum() / 2 < noise_limit(truth, samples)


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
    target, draft = setup
    target.generate(PROMPT, assistant_model=(d := draft(RecordingDraft)), do_sample=True, max_new_tokens=12, **options)
    assert d.records
    for drafts, q, processed in d.records:
        assert q.shape == processed.shape
        assert torch.equal(q.isfinite(), processed.isfinite())
        torch.testing.assert_close(q, processed.log_softmax(-1), rtol=0, atol=1e-6)
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
