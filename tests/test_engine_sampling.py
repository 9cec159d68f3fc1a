"""Sampled output of the engine has the target's distribution: every rule, drawn and chosen nodes, trees and chains, lookup, ragged rows.

The joint law of three tokens is compared with what enumeration says, in units of what honest samples of the same number differ by at
most. Each way to be biased that is known is built in once, and caught by the same test.
"""

import itertools
from dataclasses import replace

import pytest
import torch
from biased import always_keep_the_first
from domino import generate
from domino.drafting import domino as drafting
from domino.drafting import sampled as drawing
from domino.drafting.proposal import Sampled
from domino.generation import budget, learnt
from domino.generation.choosing import draws_nodes
from domino.generation.settings import EngineSettings
from domino.verification import accept, verdict
from tiny import make_draft, make_target
from transformers import GenerationConfig
from transformers.generation import LogitsProcessorList

VOCAB, END, NEW = 6, 2, 4
TOKENS = {"vocab_size": VOCAB, "bos_token_id": None, "eos_token_id": None}
SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
# most tokens were said before, so lookup has something to say
PROMPTS = [torch.tensor([1, 4, 3, 5, 4, 1, 0, 3, 4, 5, 1]), torch.tensor([3, 1, 0, 3, 5])]
OPTIONS = {"do_sample": True, "temperature": 0.8, "top_k": 5, "top_p": 0.9}
PLACE = torch.tensor([VOCAB**2, VOCAB, 1])
STEPS = {0: 30.0, 1: 31.0, 3: 33.0, 8: 50.0}  # seconds of a verification by nodes
HOW = {"budget": 7, "lookup": True, "shape": "tree", "draws": "sampled"}


@pytest.fixture(scope="module")
def target():
    return make_target(**SHAPE, **TOKENS).float()


@pytest.fixture
def draft():
    """A new one each time: what was learnt of the last one shapes no tree of this."""
    shape = {"target_layer_ids": [0], "mask_token_id": 5, "block_size": 3, "num_target_layers": 1}
    return make_draft(initializer_range=0.1, **shape, **SHAPE, **TOKENS).float()


@torch.no_grad()
def exact(target, prompt, **more) -> torch.Tensor:
    """P(x1, x2, x3 | prompt) by enumeration, [VOCAB ** 3]; END is followed by END only."""
    config, _ = target._prepare_generation_config(None, **OPTIONS, **more, eos_token_id=END, pad_token_id=0)
    target._prepare_special_tokens(config, True, device="cpu")
    processors = target._get_logits_processor(config, input_ids_seq_length=len(prompt), device="cpu")
    assert isinstance(processors, LogitsProcessorList)
    tails = torch.tensor(list(itertools.product(range(VOCAB), repeat=3)))
    ids = torch.cat([prompt.expand(len(tails), -1), tails], dim=-1)
    logits = target(ids).logits.float()
    joint, ended = torch.ones(len(tails)), torch.zeros(len(tails), dtype=torch.bool)
    for at in range(len(prompt), ids.shape[1]):
        p = processors(ids[:, :at], logits[:, at - 1]).softmax(-1).gather(1, ids[:, at, None])[:, 0]
        joint *= torch.where(ended, (ids[:, at] == END).float(), p)
        ended |= ids[:, at] == END
    return joint


def sampled(target, draft, rows: int, calls: int, **more) -> list[torch.Tensor]:
    """Empirical laws of three tokens for both prompts, over calls with `rows` rows of each."""
    longest = max(map(len, PROMPTS))
    ids = torch.stack([torch.nn.functional.pad(p, (longest - len(p), 0), value=5) for p in PROMPTS])
    mask = torch.stack([torch.arange(longest) >= longest - len(p) for p in PROMPTS]).long()
    ids, mask = ids.repeat(rows, 1), mask.repeat(rows, 1)
    counts = torch.zeros(2, VOCAB**3)
    for _ in range(calls):
        options = {**OPTIONS, "attention_mask": mask, "max_new_tokens": NEW, "eos_token_id": END, "pad_token_id": END}
        out = generate(target, draft, ids, **options, **more)[:, longest:]
        said = torch.nn.functional.pad(out, (0, NEW - out.shape[1]), value=END)[:, :3]
        ended = (said == END).cumsum(-1) - (said == END).long() > 0
        said = said.masked_fill(ended, END)
        for prompt in range(2):
            counts[prompt] += torch.bincount((said[prompt::2] * PLACE).sum(-1), minlength=VOCAB**3)
    return list(counts / (rows * calls))


PARTS = ((0, 1, 2), (0, 1), (1, 2), (1,), (2,))  # of the three tokens; small ones show small differences


def parts(laws: torch.Tensor) -> list[torch.Tensor]:
    """Marginal laws [..., VOCAB ** k] of joint ones [..., VOCAB ** 3]."""
    cube = laws.unflatten(-1, (VOCAB,) * 3)
    others = [[n - 3 for n in range(3) if n not in part] for part in PARTS]
    return [(cube.sum(rest) if rest else cube).flatten(-len(part)) for rest, part in zip(others, PARTS, strict=True)]


def difference(ours: torch.Tensor, truth: torch.Tensor, samples: int) -> float:
    """Total variation in units of what honest samples of this size stay within: the worst of 200, and a fifth; of all parts the largest."""
    drawn = [torch.bincount(torch.multinomial(truth, samples, True), minlength=VOCAB**3) / samples for _ in range(200)]
    found = zip(parts(ours), parts(truth), parts(torch.stack(drawn)), strict=True)
    return max(float((o - t).abs().sum() / (1.2 * (d - t).abs().sum(-1).max())) for o, t, d in found)


def distances(target, draft, rows, calls, processors=None, **how) -> list[float]:
    """Of both prompts."""
    torch.manual_seed(0)
    found = sampled(target, draft, rows, calls, **{**HOW, **how}, **(processors or {}))
    truths = [exact(target, prompt, **(processors or {})) for prompt in PROMPTS]
    return [difference(ours, truth, rows * calls) for ours, truth in zip(found, truths, strict=True)]


COMBINATIONS = [
    {**how, "shape": shape, "lookup": lookup}
    for how in ({"draws": "shared"}, *({"draws": "sampled", "accept": rule} for rule in accept.RULES))
    for shape in ("tree", "chain")
    for lookup in (True, False)
]


def named(how: dict) -> str:
    return "-".join(str(value) for value in how.values())


@pytest.mark.parametrize("how", COMBINATIONS, ids=named)
def test_joint_distribution(target, draft, how):
    # with a pool smaller than the vocabulary the drafter leaves something to lookup
    assert max(distances(target, draft, 1000, 2, candidate_pool=4, **how)) < 1
    counts = draft.statistics
    assert 0 < sum(counts.accepted) < sum(counts.drafted)
    assert bool(sum(counts.lookup)) == how["lookup"]


@pytest.mark.slow
@pytest.mark.parametrize("how", COMBINATIONS, ids=named)
def test_joint_distribution_of_many(target, draft, how):
    assert max(distances(target, draft, 2000, 8, **how)) < 1


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
def test_drafts_from_a_pool(target, draft, rule):
    """q is nothing outside of the pool, p is not; lookup's tokens may lie there."""
    assert max(distances(target, draft, 1000, 2, candidate_pool=3, accept=rule)) < 1
    assert sum(draft.statistics.lookup) > 0


@pytest.mark.parametrize("draws", ["sampled", "shared"])
def test_processors_that_read_the_text(target, draft, draws):
    """Few rows a call, since each place is processed by itself, as all rows of the batch."""
    assert max(distances(target, draft, 4, 100, {"repetition_penalty": 1.3}, draws=draws)) < 1


def known(steps: dict[int, float]):
    """Costs as if they had been measured long ago; what a call measures is not heard."""
    costs = budget.Costs()
    for size, seconds in steps.items():
        costs.mean[size], costs.weight[size] = seconds, 1.0
    return costs


@pytest.mark.parametrize("rule", ["traversal", "walk"])
def test_sizes_chosen_by_what_is_known_before_the_draw(target, draft, rule, monkeypatch):
    """The budget is automatic, and seconds are such that sizes differ from round to round; rows are few, so that they do."""
    monkeypatch.setattr(budget.Costs, "saw", lambda *args: None)
    monkeypatch.setattr(budget.Costs, "unknown", lambda *args: None)
    monkeypatch.setattr(
        learnt.Learnt, "budget", lambda self, rows: self.budgets.setdefault(0, budget.Budget(known(STEPS)))
    )
    widths = set()

    def on_round(row, what):
        widths.add(len(what.tree))

    assert max(distances(target, draft, 5, 120, budget="auto", shape="auto", accept=rule, on_round=on_round)) < 1
    assert len(widths) > 3


def residual_of_nothing(tables, flip):
    """Biased: what follows a turned-down node comes from p instead of the residual."""
    found = accept.traversal(tables, flip)
    slot = found.path[-1] + 1 if found.path else 0
    return replace(found, weights=tables.p[slot], outside=tables.rest[slot])


@pytest.mark.parametrize("rule", [always_keep_the_first, residual_of_nothing])
def test_biased_rules_are_caught(target, draft, rule, monkeypatch):
    monkeypatch.setitem(accept.RULES, "traversal", rule)
    assert min(distances(target, draft, 1000, 2)) > 1.3


def pruned_by_what_was_drawn(*args, draw=drawing.draw):
    """Biased: nodes of small q are left out once they are known, and what hangs on them."""
    trees, law = draw(*args)
    kept_trees, rows = [], []
    for row, tree in enumerate(trees):
        kept: list[int] = []
        for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True)):
            if (parent < 0 or parent in kept) and law.q[row, law.rows[row][parent + 1], token] > 0.25:
                kept.append(node)
        kept_trees.append(tree.take(kept))
        rows.append([law.rows[row][slot] for slot in [0, *(node + 1 for node in kept)]])
    return kept_trees, Sampled(law.ids, law.q, rows)


def test_nodes_pruned_by_their_own_q_are_caught(target, draft, monkeypatch):
    monkeypatch.setattr(drafting, "draw", pruned_by_what_was_drawn)
    assert min(distances(target, draft, 1000, 2, lookup=False)) > 1.3


def with_replacement(head, q, most):
    """Biased, as the rules take siblings for draws without replacement: two of them may be the same token."""
    return torch.stack([torch.multinomial(lanes, most, replacement=True) for lanes in q])


def the_likeliest(head, q, most):
    """Biased: nodes that were chosen are returned as drawn, and so tested with p / q."""
    best = q.topk(min(most, q.shape[-1]), dim=-1).indices
    return torch.nn.functional.pad(best, (0, most - best.shape[-1]), value=-1)


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
@pytest.mark.parametrize("race", [with_replacement, the_likeliest])
def test_children_that_were_not_drawn_as_said_are_caught(target, draft, race, rule, monkeypatch):
    monkeypatch.setattr(drawing, "_race", race)
    assert min(distances(target, draft, 1000, 2, lookup=False, accept=rule)) > 1.3


def test_lookups_nodes_tested_as_if_drawn_are_caught(target, draft, monkeypatch):
    def tables(*args, made=verdict._tables):
        support, target, found = made(*args)
        return support, target, replace(found, sampled=[True] * len(found.sampled))

    monkeypatch.setattr(verdict, "_tables", tables)
    assert max(distances(target, draft, 1000, 2, shape="chain")) > 1.3


def test_a_seed_repeats_a_text(target, draft):
    """Nodes that are drawn: with a fixed budget, whatever calls between taught the engine."""
    options = {"do_sample": True, "max_new_tokens": 30, "budget": 5, "draws": "sampled", "eos_token_id": None}
    texts = []
    for seed in (0, 1, 0):
        torch.manual_seed(seed)
        texts.append(generate(target, draft, PROMPTS[0][None], **options))
    assert torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0], texts[1])


def test_whether_nodes_are_drawn():
    """Where it was asked for; greedy decoding and the walk draw nothing."""

    def draws(do_sample, **how):
        return draws_nodes(EngineSettings(**how), GenerationConfig(do_sample=do_sample))

    assert draws(True, draws="sampled")
    assert not draws(True)
    assert not draws(True, accept="walk", draws="sampled")
    assert not draws(False, draws="sampled")
