"""The draw and the pool against their twins, in the interpreter or on a GPU, through regimes rather than random shapes."""

import pytest
import torch

pytest.importorskip("triton")
from domino.doctor.compare import same_draw
from domino.drafting.head import candidate_pool
from domino.kernels import operators as ops
from domino.kernels import twins

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def randn(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def poisoned(tensor):
    """The same values as a view into a buffer that is NaN all around them."""
    wide = torch.full([size + 3 for size in tensor.shape], torch.nan, dtype=tensor.dtype, device=tensor.device)
    view = wide[tuple(slice(1, 1 + size) for size in tensor.shape)]
    return view.copy_(tensor)


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Uninitialised memory is NaN, or for integers far outside any vocabulary."""
    empty, empty_like = torch.empty, torch.empty_like

    def fill(tensor):
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 2**40 if tensor.dtype == torch.int64 else 0)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(empty_like(*a, **k)))


@pytest.fixture(autouse=True)
def sanitized(poison):
    """In the interpreter every address that a kernel uses lies in its tensors."""
    if DEVICE == "cuda":
        yield
        return
    from addresses import watched

    with watched() as seen:
        yield seen


def test_each_launch_is_on_the_device_of_its_tensors(monkeypatch):
    """Triton launches on the current device, which need not be the one that the drafter is on."""
    from contextlib import contextmanager

    from triton.runtime import interpreter, jit

    guarded, launched = [], []

    @contextmanager
    def device_of(tensor):
        guarded.append(tensor.device)
        yield
        guarded.pop()

    runner = jit.JITFunction if DEVICE == "cuda" else interpreter.InterpretedFunction
    run = runner.__getitem__
    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(runner, "__getitem__", lambda self, grid: launched.append(len(guarded)) or run(self, grid))
    w2, base, given = randn(30, 8), randn(2, 3, 30), torch.ones(2, 1, dtype=torch.int64, device=DEVICE)
    ops.sample(base[:, 0], torch.rand(2).to(DEVICE), 1.0, 0, 1.0)
    ops.gather_pool(base, w2, given)
    ops.rollout_greedy(given, randn(2, 3, 8), base, randn(30, 12), randn(12, 4), randn(8, 4), w2, None)
    assert launched == [1] * 3


FILTERS = [
    (1.0, 0, 1.0),
    (0.7, 0, 1.0),
    (1.3, 5, 1.0),
    (0.9, 0, 0.7),
    (1.0, 20, 0.5),
    (0.3, 1, 0.9),
    (1.0, 10**6, 0.999),
]


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), FILTERS)
def test_sampling_given_the_noise(temperature, top_k, top_p):
    logits, noise = randn(6, 1500, scale=3), torch.rand(6, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    noise[0], noise[1] = 0.0, 1 - 2**-24
    places, q = ops.sample(poisoned(logits), noise, temperature, top_k, top_p)
    same_draw(places, q, *twins.sample(logits, noise, temperature, top_k, top_p), noise)


def test_sampling_keeps_equal_logits_together():
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 0.0]], device=DEVICE)
    noise = torch.zeros(1, device=DEVICE)
    for top_k, top_p in [(2, 1.0), (0, 0.6)]:
        _, q = ops.sample(logits, noise, 1.0, top_k, top_p)
        assert q.isfinite().tolist() == [[False, True, True, True, True, False]]


def test_sampling_from_nothing_is_uniform():
    logits = torch.full((2, 40), -torch.inf, device=DEVICE)
    logits[1, 3] = torch.nan
    places, q = ops.sample(logits, torch.tensor([0.0, 0.51], device=DEVICE), 1.0, 5, 0.9)
    assert (q == 0).all()
    assert places.tolist() == [0, 20]


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (3, 0.9)])
def test_sampling_from_saturated_logits(top_k, top_p):
    """Infinities, and what temperature makes one of, are the largest number: among them q is uniform, never NaN."""
    logits = randn(3, 20)
    logits[0, [4, 9]] = torch.inf
    logits[1, [5, 6]] = 3e38
    logits[2] = torch.finfo(torch.float32).min
    noise = torch.full((3,), 0.6, device=DEVICE)
    places, q = ops.sample(logits, noise, 0.5, top_k, top_p)
    expected, expected_q = twins.sample(logits, noise, 0.5, top_k, top_p)
    assert places.tolist() == expected.tolist() == [9, 6, 12]
    assert torch.equal(q, expected_q)
    assert q.softmax(-1).isfinite().all()


def test_sampling_has_the_distribution():
    """2,000 draws against q: chi-squared with 9 degrees of freedom exceeds 33.7 once in 10,000."""
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5, 1.5, -0.5, 0.2, 0.9, 2.2], device=DEVICE)
    noise = torch.rand(2000, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    places, q = ops.sample(logits.expand(len(noise), -1), noise, 0.8, 0, 1.0)
    expected = q[0].softmax(-1) * len(noise)
    assert ((torch.bincount(places, minlength=10) - expected) ** 2 / expected).sum() < 33.7


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_pool(dtype):
    base, w2 = randn(2, 3, 100), randn(100, 37, dtype=dtype)
    ids = candidate_pool(base, 41)
    for got, expected in zip(
        ops.gather_pool(poisoned(base), poisoned(w2), ids), twins.gather_pool(base, w2, ids), strict=True
    ):
        assert torch.equal(got, expected)


def test_operators_know_their_shapes_without_running():
    """torch's own check of schema, fake registration and dispatch."""
    for operator, args in {
        ops.sample: (randn(2, 30), torch.rand(2).to(DEVICE), 1.0, 3, 0.9),
        ops.gather_pool: (randn(2, 3, 30), randn(30, 8), torch.tensor([[1, 2], [3, 4]], device=DEVICE)),
    }.items():
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))
