"""Through the engine and `generate`, the seam forced to Triton (interpreted) and to torch."""

import pytest
import torch
from domino import generate
from domino.drafting.calibration import Calibration
from domino.drafting.domino import Block
from domino.drafting.drafter import Picking, Wanted
from domino.drafting.fused_chain import Plan, fused_rollout, plan_for, projections
from domino.drafting.head import BlockHead, HeadWeights
from domino.kernels import seam
from domino.kernels.twins import warp
from tiny import VOCAB, make_draft, make_target, stock
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IDS = torch.randint(3, VOCAB - 1, (3, 7), generator=torch.Generator().manual_seed(4))


CHAIN = {"budget": 4, "shape": "chain", "lookup": False}


@pytest.fixture
def launches(monkeypatch):
    """Counts the rollouts that were one launch."""
    seen = []

    def spy(*args):
        seen.append(args[-1])
        return fused_rollout(*args)

    monkeypatch.setattr("domino.drafting.domino.fused_rollout", spy)
    return seen


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("pool", [0, 7])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_the_engine_says_the_same_either_way(shift, pool, prefix, launches):
    target, draft = make_target().to(DEVICE), make_draft(shift_label=shift, pure_draft_prefix_len=prefix).to(DEVICE)
    options = {
        "max_new_tokens": 12,
        "do_sample": False,
        "eos_token_id": None,
        "candidate_pool": pool,
        **CHAIN,
    }
    said = {}
    for choice in ("torch", "triton"):
        with seam.forced(choice):
            said[choice] = generate(target, draft, IDS.to(DEVICE), **options), draft.statistics.accepted
        assert bool(launches) == (choice == "triton")
    plain = target.generate(IDS.to(DEVICE), max_new_tokens=12, do_sample=False, eos_token_id=None)
    assert torch.equal(said["triton"][0], plain)
    assert torch.equal(said["torch"][0], plain)
    assert said["triton"][1] == said["torch"][1]  # and the drafts were the same


@pytest.mark.parametrize("eos", [None, [5, 9, 11, 20, 31]])
def test_generate_with_an_assistant_too(eos, launches):
    target, draft = make_target("qwen3").to(DEVICE), make_draft().to(DEVICE)
    options = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": eos}
    plain = target.generate(IDS[:1].to(DEVICE), **options)
    for choice in ("torch", "triton"):
        with seam.forced(choice):
            assert torch.equal(target.generate(IDS[:1].to(DEVICE), assistant_model=stock(draft), **options), plain)
    assert launches


@pytest.mark.parametrize("pool", [0, 9])
def test_sampled_drafts_come_from_the_q_they_are_returned_with(pool, launches, monkeypatch):
    """The q of a sampled rollout is what torch makes of the same drafts, and every draft is possible under it."""
    target, draft = make_target().float().to(DEVICE), make_draft().float().to(DEVICE)
    embedding, c = target.get_input_embeddings(), draft.config
    torch.manual_seed(0)
    hidden, base = (torch.randn(3, c.num_drafts, width).to(DEVICE) for width in (c.hidden_size, VOCAB))
    anchors, banned = IDS[:, :1].to(DEVICE), torch.tensor([4, 5], device=DEVICE)
    plan = Plan(embedding, True, temperature=0.8, top_k=6, top_p=0.9, banned=(4, 5))

    def asked(logits, paths):
        raise AssertionError("a rollout in one launch asks nobody")

    session = draft.open(target, 3, anchors.device, pool=pool)
    monkeypatch.setattr(session, "block", lambda anchors, count: Block(hidden, base))
    wanted = Wanted(c.num_drafts, [c.num_drafts] * 3, 0.0, chain=True, calibration=Calibration())
    with seam.forced("triton"), torch.no_grad():
        proposal = session.propose(anchors, wanted, Picking(True, asked, banned=(4, 5), plan=plan))
    assert len(launches) == 1
    assert all(tree.is_chain() and set(tree.drawn) == {0} for tree in proposal.trees)
    drafts, q = proposal.tokens(anchors.device), proposal.law.q
    assert drafts.shape == (3, c.num_drafts)
    assert proposal.law.ids is None
    assert proposal.law.rows == [[*range(c.num_drafts), -1]] * 3
    assert (q.gather(2, drafts[..., None]) > 0).all()
    assert (q[..., [4, 5]] == 0).all()
    assert ((q > 0).sum(-1) <= 6).all()

    head = BlockHead(
        HeadWeights(draft), hidden, base.index_fill(2, banned, -torch.inf), embedding, pool
    )  # banned tokens are in no pool
    lanes = head.begin(anchors)
    for place in range(c.num_drafts):
        with torch.no_grad():
            logits = head.wide(head.logits(place, lanes)) if place >= c.pure_draft_prefix_len else base[:, place, None]
            expected = warp(logits[:, 0].index_fill(1, banned, -torch.inf), 0.8, 6, 0.9)
            lanes = head.step(lanes, drafts[:, place : place + 1])
        assert torch.equal(q[:, place] > 0, expected.isfinite())
        torch.testing.assert_close(q[:, place], expected.softmax(-1), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_sampling_through_the_engine_launches_once_a_block(shift, prefix, launches):
    target, draft = make_target().to(DEVICE), make_draft(shift_label=shift, pure_draft_prefix_len=prefix).to(DEVICE)
    with seam.forced("triton"):
        options = {"max_new_tokens": 8, "do_sample": True, "temperature": 0.9, "top_k": 12, "draws": "sampled", **CHAIN}
        out = generate(target, draft, IDS.to(DEVICE), **options)
        assert out.shape[0] == 3
        blocks = len(launches)
        assert blocks > 0
        generate(target, draft, IDS.to(DEVICE), min_p=0.1, **options)
    assert len(launches) == blocks  # min-p is no part of a launch


def test_what_a_plan_can_be():
    embedding = torch.nn.Embedding(4, 2)
    warpers = [TemperatureLogitsWarper(0.7), TopKLogitsWarper(5), TopPLogitsWarper(0.9)]
    assert plan_for(warpers, embedding, True) == Plan(embedding, True, 0.7, 5, 0.9)
    assert plan_for(warpers[::2], embedding, True) == Plan(embedding, True, 0.7, 0, 0.9)
    assert plan_for([], embedding, False, (2,)) == Plan(embedding, banned=(2,))
    assert plan_for(warpers[::-1], embedding, True) is None  # another order cuts otherwise
    assert plan_for([*warpers, MinPLogitsWarper(0.1)], embedding, True) is None
    assert plan_for(warpers, embedding, False) is None
    assert plan_for([TopPLogitsWarper(0.9, min_tokens_to_keep=3)], embedding, True) is None


def test_projections_follow_the_weights():
    draft, embedding = make_draft(), make_target().get_input_embeddings()
    other = make_target(seed=3).get_input_embeddings()
    with torch.no_grad():
        first = projections(draft, embedding, embedding)
        torch.testing.assert_close(first, embedding.weight @ draft.prefix_gru.weight_ih_l0.T)
        assert projections(draft, embedding, embedding) is first
        assert not torch.equal(projections(draft, other, other), first)
        draft.prefix_gru.weight_ih_l0.mul_(2)
        torch.testing.assert_close(projections(draft, embedding, embedding), 2 * first)


def test_the_seam_refuses_what_it_cannot_do(monkeypatch):
    with pytest.raises(ValueError, match="auto, triton, torch"), seam.forced("cuda"):
        pass
    monkeypatch.setenv("DOMINO_KERNELS", "fast")
    with pytest.raises(ValueError, match="'fast'"):
        seam.uses_triton(torch.device("cpu"))
    monkeypatch.setenv("DOMINO_KERNELS", "torch")
    assert not seam.uses_triton(torch.device("cuda"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    seam._decide.cache_clear()
    with seam.forced("triton"), pytest.raises(ValueError, match="interpreter"):
        seam.uses_triton(torch.device("cpu"))
    seam._decide.cache_clear()


@pytest.mark.parametrize(
    ("capability", "hip", "able"),
    [((9, 0), None, True), ((8, 0), None, True), ((7, 5), None, False), ((9, 4), "7.0", False)],
)
def test_the_gpus_that_the_kernels_are_built_for(capability, hip, able, monkeypatch):
    """Whether they are on there is for a check to say (tests/test_devices.py)."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert seam.able(torch.device("cuda")) is able
    assert not seam.able(torch.device("cpu"))
    seam._decide.cache_clear()
    if not able:
        assert not seam.uses_triton(torch.device("cuda"))
        with seam.forced("triton"), pytest.raises(ValueError, match="cuda"):
            seam.uses_triton(torch.device("cuda"))
    seam._decide.cache_clear()
