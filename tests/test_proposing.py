"""A round's proposal: the drafter's nodes and lookup's, within what is allowed, each observed once."""

import pytest
import torch
from domino import generate
from domino.drafting.calibration import LOOKUP as FIRST
from domino.drafting.calibration import SAMPLED
from domino.drafting.proposal import LOOKUP
from domino.generation.proposing import Proposer
from domino.kernels import seam
from tiny import make_draft, make_target

TARGET = make_target(initializer_range=0.4)  # it repeats itself
PROMPT = torch.tensor([[5, 9, 11, 5, 9, 11, 5, 9, 11, 5, 9, 30], [7, 7, 7, 3, 7, 7, 7, 3, 7, 7, 7, 3]])
SAMPLING = {"do_sample": True, "temperature": 1.0, "max_new_tokens": 16, "eos_token_id": None}


@pytest.fixture
def candidates(monkeypatch):
    """Everything that was drafted, verified or not, one a row and round."""
    seen = []
    observe = Proposer.observe

    def spy(self, paths, said):
        seen.extend(self.candidates)
        return observe(self, paths, said)

    monkeypatch.setattr(Proposer, "observe", spy)
    return seen


@pytest.mark.parametrize("draws", ["sampled", "shared"])
@pytest.mark.parametrize("budget", [1, 6, 20])
def test_every_source_of_a_node_learns_once(draws, budget, candidates):
    torch.manual_seed(0)
    generate(
        TARGET, make_draft(), PROMPT, draws=draws, budget=budget, shape="tree", **{**SAMPLING, "max_new_tokens": 80}
    )
    kinds: list[tuple[int, ...]] = []
    for tree in candidates:
        for cells, drawn in zip(tree.cells, tree.drawn, strict=True):
            kinds.append(tuple((cell >= SAMPLED) + (cell >= FIRST) for cell in cells))
            assert kinds[-1] in [(1,), (2,), (1, 2)] if drawn >= 0 else kinds[-1] in [(0,), (2,), (0, 2)]
    if budget == 20:
        assert {len(kind) for kind in kinds} == {1, 2}  # some nodes are of both


@pytest.mark.parametrize("shape", ["tree", "chain"])
@pytest.mark.parametrize("choice", ["torch", "triton"])
@pytest.mark.parametrize("options", [SAMPLING, {**SAMPLING, "do_sample": False, "temperature": None}])
def test_no_more_nodes_than_allowed_whoever_made_them(shape, choice, options):
    if choice == "triton":
        pytest.importorskip("triton")
    draft, rounds = make_draft(), []
    for budget in (2, 4, 16):
        torch.manual_seed(1)
        with seam.forced(choice):
            generate(
                TARGET, draft, PROMPT, budget=budget, shape=shape, on_round=lambda row, r: rounds.append(r), **options
            )
        drafted = [n for row in draft.row_statistics for n in row.drafted]
        assert max(drafted) == budget if budget < 16 else max(drafted) <= budget  # a chain ends before
    assert any(LOOKUP in r.tree.source for r in rounds)
