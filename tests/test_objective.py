"""The objective equals a loop over anchors and drafts, in float64, loss and gradients; the sampled softmax is unbiased."""

import math
from collections import Counter

import pytest
import torch
from domino.training.data import collate
from domino.training.objective import accepted_run, build_blocks, curriculum, domino_loss, head_inputs
from domino.training.vocabulary import SampledVocabulary
from domino.training.warm_start import warm_start
from tiny import VOCAB, make_draft, make_target

GAMMA, LAM = 4.0, 0.3


def naive_loss(draft, target, items, anchors):
    """One anchor, one draft at a time."""
    c = draft.config
    table, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    total = {"final": 0.0, "base": 0.0}
    norm = 0.0
    for item, row in zip(items, anchors, strict=True):
        ids = item["input_ids"]
        for a in row[row >= 0].tolist():
            block = table[[ids[a].item()] + [c.mask_token_id] * (c.block_size - 1)]
            positions = torch.arange(a + c.block_size)[None]
            hidden = draft(block[None], item["features"][None, :a].double(), None, positions).last_hidden_state[0]
            for i in range(1, c.num_drafts + 1):
                if a + i >= len(ids):
                    continue
                h = hidden[i - 1 + c.first_slot]
                base = head @ h
                final = base
                if i > c.pure_draft_prefix_len:
                    state = draft.prefix_gru(table[ids[a : a + i]][None])[1][0, 0]
                    final = base + draft.embed_proj(torch.cat([h, state]))
                w = math.exp(-(i - 1) / GAMMA)
                norm += w
                for name, logits in (("final", final), ("base", base)):
                    total[name] = total[name] - w * logits.log_softmax(-1)[ids[a + i]]
    return ((1 - LAM) * total["final"] + LAM * total["base"]) / (norm + 1e-6)


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("prefix", [0, 1])
def test_objective_equals_the_loop(shift, prefix):
    torch.manual_seed(0)
    target, draft = make_target().requires_grad_(False), make_draft(shift_label=shift, pure_draft_prefix_len=prefix)
    items = [
        {"input_ids": torch.randint(0, VOCAB, (n,)), "features": torch.randn(n, 64).bfloat16(), "prompt_length": p}
        for n, p in ((14, 3), (9, 5), (6, 4))
    ]
    batch = collate(items, num_anchors=4)
    blocks = build_blocks(batch["input_ids"], batch["lengths"], batch["anchors"], draft.config, GAMMA)
    hidden, code = head_inputs(draft, blocks, batch["features"].double(), target.get_input_embeddings().weight)
    ids, log_weights, exact, labels = SampledVocabulary(Counter(range(VOCAB)), VOCAB, VOCAB, 0).draw(blocks.labels)
    assert ids.tolist() == list(range(VOCAB))
    rows = blocks.weights > 0
    head, w2 = target.get_output_embeddings().weight, draft.embed_proj[2].weight
    weights = blocks.weights[rows].double()
    weights = torch.exp(weights.log().mul(GAMMA).round() / GAMMA)  # the decay in float64
    loss, _ = domino_loss(hidden[rows], code[rows], labels[rows], weights, head, w2, log_weights, exact, LAM)
    ours = torch.autograd.grad(loss, draft.parameters())
    reference = naive_loss(draft, target, items, batch["anchors"])
    theirs = torch.autograd.grad(reference, draft.parameters())
    assert abs(loss - reference) <= 1e-8
    assert max((a - b).abs().max() for a, b in zip(ours, theirs, strict=True)) <= 1e-8


def test_anchors_have_labels():
    items = [{"input_ids": torch.arange(7), "features": torch.zeros(7, 2), "prompt_length": 3}]
    anchors = collate(items, num_anchors=5)["anchors"]
    assert anchors.tolist() == [[3, 4, 5, -1, -1]]


def test_sampled_vocabulary_is_unbiased():
    torch.manual_seed(0)
    logits, labels = torch.randn(100).double(), torch.tensor([[3, 50]])
    vocabulary = SampledVocabulary(Counter({i: 1 for i in range(20)}), 100, 20, 10)
    estimates = []
    for _ in range(4000):
        ids, log_weights, exact, local = vocabulary.draw(labels)
        assert ids[local].tolist() == labels.tolist()
        assert len(ids) == exact + 10
        estimates.append((logits[ids] + log_weights).exp().sum())
    assert torch.stack(estimates).mean().item() == pytest.approx(logits.exp().sum().item(), rel=0.01)


def test_curriculum_and_acceptance():
    assert [curriculum(s, 100, 1.0, 0.5) for s in (0, 25, 50, 99)] == [1.0, 0.5, 0.0, 0.0]
    hit = torch.tensor([[True, True, False, True], [True, True, True, True], [False, True, True, True]])
    weights = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1.0]])
    assert accepted_run(hit, weights).tolist() == [3, 3, 1]


def test_warm_start_needs_equal_shapes():
    with pytest.raises(ValueError, match="gate_proj is .* in the drafter but"):
        warm_start(make_draft(intermediate_size=48), make_target())
    draft = make_draft()
    warm_start(draft, make_target())
    assert torch.equal(draft.fc.weight[:, -32:], torch.eye(32).double())
