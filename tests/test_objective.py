"""The objective equals a loop over anchors and drafts, in float64, loss and gradients, under every switch."""

import math
from collections import Counter

import pytest
import torch
from domino.drafting.calibration import Calibration
from domino.drafting.domino import Block
from domino.drafting.drafter import Picking, Wanted
from domino.training.blocks import block_mask, build_blocks, draw_anchors
from domino.training.config import ObjectiveSettings
from domino.training.losses.curriculum import curriculum
from domino.training.losses.prefix import self_generated
from domino.training.losses.weights import auf, dpace
from domino.training.objective import COUNTS, DominoForTraining, rates
from domino.training.target import TargetHead
from domino.training.vocabulary import SampledVocabulary, WholeVocabulary
from tiny import VOCAB, make_draft, make_target
from torch.utils._python_dispatch import TorchDispatchMode

GAMMA, LAM = 4.0, 0.3
SWITCHES = [
    {},
    {"head": False},
    {"prefix": "self"},
    {"weights": "auf"},
    {"weights": "dpace"},
    {"labels": "kl"},
    {"labels": "l1", "soft_weight": 0.9},
]


def make_batch(lengths=(14, 9, 6), prompts=(3, 5, 4), anchors=4, hidden=32):
    torch.manual_seed(0)
    lengths, prompts = torch.tensor(lengths), torch.tensor(prompts)
    return {
        "input_ids": torch.randint(0, VOCAB, (len(lengths), int(lengths.max()))),
        "lengths": lengths,
        "anchors": draw_anchors(lengths, prompts, torch.arange(len(lengths)), anchors, seed=1),
        "features": torch.randn(len(lengths), int(lengths.max()), 2 * hidden).double(),
        "last_hidden": torch.randn(len(lengths), int(lengths.max()), hidden).double(),
    }


def make_trained(vocabulary=None, draft=None, target=None, **switches):
    target, draft = target or make_target(), draft or make_draft()
    settings = ObjectiveSettings(gamma=GAMMA, **switches)
    model = DominoForTraining(draft.config, TargetHead.of(target), vocabulary or WholeVocabulary(VOCAB), settings)
    model.load_state_dict(draft.state_dict())
    return model.double()


def naive_hidden(model, ids, features, a):
    c, table = model.config, model.target_head.embed(torch.arange(VOCAB))
    block = table[[ids[a].item()] + [c.mask_token_id] * (c.block_size - 1)]
    positions = torch.arange(a + c.block_size)[None]
    return (
        super(DominoForTraining, model).forward(block[None], features[None, :a], None, positions).last_hidden_state[0]
    )


def naive_logits(model, ids, hidden, a):
    """Base and final logits of each draft of a block, one at a time."""
    c, s, table = model.config, model.objective, model.target_head.embed(torch.arange(VOCAB))
    said = [ids[a].item()]
    for i in range(1, c.num_drafts + 1):
        h = hidden[i - 1 + c.first_slot]
        base = final = model.target_head.logits(h)
        if s.head and i > c.pure_draft_prefix_len:
            read = said if s.prefix == "self" else [ids[min(a + j, len(ids) - 1)].item() for j in range(i)]
            final = base + model.embed_proj(torch.cat([h, model.prefix_gru(table[read][None])[1][0, 0]]))
        said.append(final.argmax().item())
        yield base, final


def naive_loss(model, batch):
    """One anchor, one draft at a time, in the words of the papers."""
    s, sums = model.objective, {"final": [0.0, 0.0], "base": [0.0, 0.0]}
    for row, anchors in enumerate(batch["anchors"]):
        ids = batch["input_ids"][row, : batch["lengths"][row]]
        for a in anchors[anchors >= 0].tolist():
            steps = list(naive_logits(model, ids, naive_hidden(model, ids, batch["features"][row], a), a))
            steps = steps[: len(ids) - 1 - a]
            probabilities = [f.softmax(-1)[ids[a + i]].item() for i, (_, f) in enumerate(steps, 1)]
            reach = [math.prod(0.5 * p + 0.5 for p in probabilities[:j]) for j in range(1, len(steps) + 1)]
            failed = False
            for i, (base, final) in enumerate(steps, 1):
                w = math.exp(-(i - 1) / GAMMA)
                weights = {"base": w, "final": w}
                if s.weights == "dpace":
                    weights["final"] = sum(reach[i - 1 :])
                if s.weights == "auf" and failed:
                    weights["final"] = 0.0
                failed |= final.argmax() != ids[a + i]
                p = model.target_head.logits(batch["last_hidden"][row, a + i - 1]).softmax(-1)
                for name, logits in (("final", final), ("base", base)):
                    q = logits.softmax(-1)
                    soft = {"kl": (p * (p / q).log()).sum(), "l1": (p - q).abs().sum(), "hard": 0.0}[s.labels]
                    share = s.soft_weight if s.labels != "hard" else 0.0
                    loss = share * soft - (1 - share) * q[ids[a + i]].log()
                    sums[name][0] = sums[name][0] + weights[name] * loss
                    sums[name][1] += weights[name]
    final, base = (total / (norm + 1e-6) for total, norm in sums.values())
    return (1 - LAM) * final + LAM * base


def gradients(loss, model):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, materialize_grads=True)])


@pytest.mark.parametrize("shift", [True, False], ids=["shift", "fill-in"])
@pytest.mark.parametrize("prefix", [0, 1])
@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())) or "domino")
def test_objective_equals_the_loop(shift, prefix, switches):
    draft = make_draft(shift_label=shift, pure_draft_prefix_len=prefix)
    model, batch = make_trained(draft=draft, **switches), make_batch()
    loss = model(**batch, lam=LAM)["loss"]
    reference = naive_loss(model, batch)
    assert abs(loss - reference) <= 1e-8
    assert (gradients(loss, model) - gradients(reference, model)).abs().max() <= 1e-8


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda s: "-".join(map(str, s.values())) or "domino")
def test_chunks_add_up_to_the_whole(switches):
    batch = make_batch()
    whole = make_trained(chunk_blocks=100, **switches)
    chunked = make_trained(chunk_blocks=2, **switches)
    a, b = whole(**batch, lam=LAM), chunked(**batch, lam=LAM)
    assert abs(a["loss"] - b["loss"]) <= 1e-12
    assert torch.allclose(whole.counts, chunked.counts)
    assert (gradients(a["loss"], whole) - gradients(b["loss"], chunked)).abs().max() <= 1e-12


class Largest(TorchDispatchMode):
    """Elements of the largest tensor made, forward and backward."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


@pytest.mark.parametrize("chunk", [8, 100])
def test_logits_never_exist_whole(chunk):
    vocab = 4096
    target, draft = make_target(vocab_size=vocab), make_draft(vocab_size=vocab)
    model = make_trained(WholeVocabulary(vocab), draft, target, chunk_blocks=chunk, labels="kl")
    batch = make_batch(lengths=(40, 40), prompts=(3, 3), anchors=16)
    with Largest() as seen:
        model(**batch, lam=LAM)["loss"].backward()
    whole = 32 * draft.config.num_drafts * vocab
    if chunk == 8:
        assert seen.elements <= 8 * draft.config.num_drafts * vocab  # nothing beyond one chunk's logits
    else:
        assert seen.elements >= whole  # the test sees what it looks for


def test_parts_of_a_step_add_up_to_its_weighted_mean():
    model, batch = make_trained(), make_batch()
    total = model.decay_weight(batch["lengths"], batch["anchors"])
    whole = model(**batch, lam=LAM)["loss"]
    assert torch.isclose(total, model.counts[COUNTS.index("weight")])
    parts = [{name: value[rows] for name, value in batch.items()} for rows in (slice(0, 1), slice(1, 3))]
    assert abs(sum(model(**part, lam=LAM, total_weight=float(total))["loss"] for part in parts) - whole) <= 1e-6


def test_attention_implementations_see_the_same():
    """Flex attention itself runs on GPUs; here its mask is asked place by place."""
    batch, found = make_batch(), []
    for kind in ("sdpa", "eager"):
        model = make_trained(attention=kind)
        model.set_attn_implementation(kind)
        found.append(float(model(**batch, lam=LAM)["loss"]))
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    seen = block_mask(batch["anchors"], batch["input_ids"].shape[1], 5, "sdpa")
    flex = block_mask(batch["anchors"], batch["input_ids"].shape[1], 5, "flex")
    b, query, key = (torch.arange(n) for n in (seen.shape[0], seen.shape[2], seen.shape[3]))
    assert torch.equal(flex.mask_mod(b[:, None, None], 0, query[:, None], key), seen[:, 0])


def test_layout_of_blocks():
    config = make_draft(block_size=4, shift_label=True).config
    blocks = build_blocks(torch.arange(10, 20)[None], torch.tensor([10]), torch.tensor([[7, -1]]), config)
    assert blocks.block_ids[0, 0].tolist() == [17, 47, 47, 47]
    assert blocks.prefix_ids[0, 0].tolist() == [17, 18, 19, 19]
    assert blocks.exists[0].tolist() == [[True, True, False, False], [False] * 4]
    assert blocks.position_ids[0, -8:-4].tolist() == [7, 8, 9, 10]


def test_anchors_have_labels_and_depend_on_the_sequence_alone():
    lengths, prompts = torch.tensor([7, 30, 30]), torch.tensor([3, 5, 5])
    anchors = draw_anchors(lengths, prompts, torch.tensor([0, 1, 2]), 5, seed=9)
    assert anchors[0].tolist() == [3, 4, 5, -1, -1]
    assert anchors[1].tolist() != anchors[2].tolist()
    assert draw_anchors(lengths[2:], prompts[2:], torch.tensor([2]), 5, seed=9).tolist() == anchors[2:].tolist()
    assert draw_anchors(lengths[2:], prompts[2:], torch.tensor([2]), 5, seed=10).tolist() != anchors[2:].tolist()


def test_a_sequence_without_a_label_adds_nothing():
    model, batch = make_trained(), make_batch(lengths=(14, 4), prompts=(3, 3))
    assert batch["anchors"][1].tolist() == [-1] * 4
    alone = {name: value[:1] for name, value in batch.items()}
    assert torch.equal(model(**batch, lam=0.0)["loss"], model(**alone, lam=0.0)["loss"])


def test_sampled_vocabulary_is_unbiased():
    torch.manual_seed(0)
    logits, labels = torch.randn(100).double(), torch.tensor([[3, 50]])
    vocabulary = SampledVocabulary(Counter({i: 1 for i in range(20)}), 100, 20, 10)
    estimates = []
    for seed in range(4000):
        draw = vocabulary.draw(labels, seed)
        assert draw.ids[draw.labels].tolist() == labels.tolist()
        assert len(draw.ids) == draw.exact + 10
        estimates.append(draw.weigh(draw.rows(logits)).exp().sum())
    assert torch.stack(estimates).mean().item() == pytest.approx(logits.exp().sum().item(), rel=0.01)


def test_sampled_vocabulary_of_everything_is_the_whole():
    batch = make_batch()
    sampled = make_trained(SampledVocabulary(Counter(range(VOCAB)), VOCAB, VOCAB, 5))
    assert abs(sampled(**batch, lam=LAM)["loss"] - make_trained()(**batch, lam=LAM)["loss"]) <= 1e-12


def test_weights():
    hit = torch.tensor([[True, True, False, True], [False, True, True, True]])
    assert auf(torch.ones(2, 4), hit).tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]
    half = torch.full((1, 3), math.log(2.0))
    assert dpace(half, torch.ones(1, 3), alpha=0.0).tolist() == [[0.875, 0.375, 0.125]]
    assert dpace(half, torch.tensor([[True, True, False]]), alpha=0.0).tolist() == [[0.75, 0.25, 0.0]]


def test_curriculum():
    assert [curriculum(s, 100, 1.0, 0.5) for s in (0, 25, 50, 99)] == [1.0, 0.5, 0.0, 0.0]
    assert curriculum(10, 100, 0.0, 1.0) == 0.0


def test_counts_of_an_oracle():
    """Teacher-forced acceptance counts leading hits + 1, accuracy every hit."""
    counts = torch.tensor([2.0, 8.0, 4.0, 2.0, 6.0, 5.0, 3.0, 7.0, 4.0])
    figures = rates(counts)
    assert figures == {
        "final_loss": 0.5, "base_loss": 1.5, "final_accuracy": 0.625, "base_accuracy": 0.375,
        "final_accept": 3.5, "base_accept": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_self_generated_prefixes_are_what_decoding_drafts(prefix):
    draft, target = make_draft(pure_draft_prefix_len=prefix), make_target()
    hidden, anchors = torch.randn(3, 5, 32).double(), torch.tensor([[3], [4], [5]])
    embed, head = target.get_input_embeddings(), target.get_output_embeddings()
    session, wanted = draft.open(target, 3, target.device), Wanted(5, [5] * 3, 0.0, True, Calibration())
    with torch.no_grad():
        drafts = session.walk(Block(hidden, head(hidden)), anchors, wanted, Picking()).tokens(target.device)
    read = self_generated(draft, hidden, anchors, embed, head)
    assert torch.equal(read, torch.cat([anchors, drafts[:, :-1]], dim=-1))


def test_self_generated_prefixes_under_autocast():
    draft, target, anchors = make_draft().float(), make_target().float(), torch.tensor([[3], [4], [5]])
    hidden = torch.randn(3, 5, 32)
    with torch.autocast("cpu", torch.bfloat16):
        read = self_generated(draft, hidden, anchors, target.get_input_embeddings(), target.get_output_embeddings())
    assert read.shape == (3, 5)
    assert torch.equal(read[:, :1], anchors)
