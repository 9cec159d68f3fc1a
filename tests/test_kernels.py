"""Every Triton operator against its twin, in the interpreter or on a GPU, through regimes rather than random shapes."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton")
from domino.kernels import operators as ops
from domino.kernels import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# Both sides sum in float32, in another order: a few units in the last place of sums of size ten.
SUMS = {"atol": 2e-5, "rtol": 2e-5}
# A state is rounded to the weights' dtype once; on the edge of two values the order of the sum decides.
ROUNDED = {torch.float32: SUMS, torch.float16: {"atol": 1e-3, "rtol": 0.0}, torch.bfloat16: {"atol": 8e-3, "rtol": 0.0}}


def randn(*shape, dtype=torch.float32, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def poisoned(tensor):
    """The same values as a view into a buffer that is NaN all around them."""
    wide = torch.full([size + 3 for size in tensor.shape], torch.nan, dtype=tensor.dtype, device=tensor.device)
    view = wide[tuple(slice(1, 1 + size) for size in tensor.shape)]
    return view.copy_(tensor)


def assert_best(tokens, logits, allowed):
    """Greedy tokens equal the twin's, but where its two logits lie within `allowed`: then, case by case, it is a tie in rounding."""
    best = logits.argmax(dim=-1)
    for row in (tokens != best).nonzero()[:, 0].tolist():
        gap = logits[row, best[row]] - logits[row, tokens[row]]
        assert 0 <= gap <= allowed, f"row {row}: {tokens[row]} instead of {best[row]}, {gap} apart"


@pytest.fixture(autouse=True)
def poison(monkeypatch):
    """Uninitialised memory is NaN, or for integers far outside any vocabulary."""
    empty, empty_like = torch.empty, torch.empty_like

    def fill(tensor):
        return tensor.fill_(torch.nan if tensor.is_floating_point() else 2**40 if tensor.dtype == torch.int64 else 0)

    monkeypatch.setattr(torch, "empty", lambda *a, **k: fill(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: fill(empty_like(*a, **k)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "gru"), [(1, 16), (3, 20), (17, 40), (64, 8)])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # saturated gates
def test_gru(dtype, batch, gru, scale):
    x, w = randn(batch, 3 * gru, dtype=dtype, scale=scale), randn(3 * gru, gru, dtype=dtype)
    state = randn(batch, gru, seed=1).tanh()  # of no 16-bit dtype: what meets a weight is rounded first
    got = ops.gru(poisoned(x), state, poisoned(w))
    torch.testing.assert_close(got, reference.gru_from_projection(x, state, w), **ROUNDED[dtype])
    # and the twin is torch's own cell
    e, w_ih = randn(batch, 12).double(), randn(3 * gru, 12).double()
    cell = torch.gru_cell(e, state.double(), w_ih, w.double())
    torch.testing.assert_close(reference.gru_gates(e @ w_ih.T, state.double() @ w.double().T, state.double()), cell)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "rank", "vocab"), [(1, 8, 33), (5, 48, 1000), (17, 130, 64)])
def test_greedy_step(dtype, batch, rank, vocab):
    z, s, w2 = randn(batch, rank, dtype=dtype), randn(batch, rank, seed=1), randn(vocab, rank, dtype=dtype)
    base = randn(batch, vocab, seed=2, scale=3)
    tokens = ops.greedy_step(poisoned(z), poisoned(s), poisoned(w2), poisoned(base))
    assert_best(tokens, reference.step_logits(z, s, w2, base), 1e-4)


def test_greedy_step_ties_go_to_the_lowest_token():
    w2, base = torch.zeros(200, 8, device=DEVICE), torch.zeros(3, 200, device=DEVICE)
    base[1, [70, 140]] = 2.0  # tiles apart
    base[2] = -0.0
    base[2, 9] = 0.0
    z = randn(3, 8)
    assert ops.greedy_step(z, z, w2, base).tolist() == [0, 70, 0]


def test_greedy_step_saturated_and_not_finite():
    w2, z = torch.zeros(90, 8, device=DEVICE), randn(4, 8)
    base = randn(4, 90, scale=1e30)
    base[1] = -torch.inf
    base[2, 5] = torch.inf
    base[3, 7], base[3, 8] = torch.nan, 1e38
    expected = [int(base[0].argmax()), 0, 5, 8]
    assert ops.greedy_step(z, z, w2, base).tolist() == expected
    assert reference.greedy_step(z, z, w2, base).tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_nan_when_it_is_rounded(dtype):
    """A GPU's NaN has all bits set: rounded by a carry it would be a zero, and a text of garbage would have logits."""
    nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32, device=DEVICE).view(torch.float32)
    z, w2, base = randn(2, 8), randn(40, 8, dtype=dtype), randn(2, 40)
    z[1, 3] = nan[0]
    assert ops.greedy_step(z, z, w2, base).tolist() == [int(reference.greedy_step(z, z, w2, base)[0]), 0]


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
    z, w2, base, noise = randn(2, 8), randn(30, 8), randn(2, 30), torch.rand(2).to(DEVICE)
    given, slots = torch.ones(2, 1, dtype=torch.int64, device=DEVICE), randn(2, 3, 8)
    ops.gru(randn(2, 12), randn(2, 4), randn(12, 4))
    ops.greedy_step(z, z, w2, base)
    ops.sample_step(z, z, w2, base, noise, 1.0, 0, 1.0)
    ops.gather_pool(randn(2, 3, 30), w2, given)
    ops.accept(given.expand(2, 4), given.expand(2, 3), given[:, 0])
    ops.rollout_greedy(given, slots, randn(2, 3, 30), randn(30, 12), randn(12, 4), randn(8, 4), w2, None)
    assert launched == [1] * 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_true_vocabulary(dtype):
    """Qwen3's 151,936 tokens: no multiple of the tile beyond 64, the best in the last one."""
    z, s, w2 = randn(1, 16, dtype=dtype), randn(1, 16, seed=1), randn(151936, 16, dtype=dtype, scale=0.1)
    base = randn(1, 151936, seed=2)
    base[0, -1] = 50.0
    assert ops.greedy_step(z, s, w2, base).tolist() == [151935]
    base[0, -1] = 0.0
    assert_best(ops.greedy_step(z, s, w2, base), reference.step_logits(z, s, w2, base), 1e-4)


@pytest.mark.slow  # 4 GiB, which the interpreter copies
def test_addresses_beyond_int32():
    """Rows that begin more than 2^31 elements into a buffer, of which only they are ever touched."""
    stride = 2**31 + 64
    # untouched pages of zeros take no memory
    storage = torch.zeros(stride + 512, dtype=torch.float16, device=DEVICE)
    base = storage.as_strided((2, 100), (stride, 1))
    w2, z = torch.zeros(100, 8, device=DEVICE), torch.zeros(2, 8, device=DEVICE)
    w2[40] = 1.0
    assert ops.greedy_step(z, z + 1, w2, base).tolist() == [40, 40]


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
    assert_sampled(places, q, *reference.sample(logits, noise, temperature, top_k, top_p), noise)


def assert_sampled(places, q, expected, expected_q, noise):
    assert torch.equal(q.isneginf(), expected_q.isneginf())
    torch.testing.assert_close(q, expected_q, **SUMS)
    assert q.gather(1, places[:, None]).isfinite().all()
    wide = expected_q.double().softmax(-1).cumsum(-1)
    for row in (places != expected).nonzero()[:, 0].tolist():
        # between the two lies an edge of the distribution that the noise meets within a rounding of the sum
        low, high = sorted((int(places[row]), int(expected[row])))
        assert (wide[row, low:high] - noise[row]).abs().max() <= 1e-5, row


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
    expected, expected_q = reference.sample(logits, noise, 0.5, top_k, top_p)
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
def test_sample_step(dtype):
    z, s, w2 = randn(3, 24, dtype=dtype), randn(3, 24, seed=1), randn(333, 24, dtype=dtype)
    base, noise = randn(3, 333, seed=2), torch.tensor([0.2, 0.5, 0.93], device=DEVICE)
    places, q = ops.sample_step(poisoned(z), s, w2, poisoned(base), noise, 0.8, 40, 0.95)
    assert_sampled(places, q, *reference.sample_step(z, s, w2, base, noise, 0.8, 40, 0.95), noise)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_pool(dtype):
    base, w2 = randn(2, 3, 100), randn(100, 37, dtype=dtype)
    ids = reference.candidate_pool(base, 41)
    for got, expected in zip(
        ops.gather_pool(poisoned(base), poisoned(w2), ids), reference.gather_pool(base, w2, ids), strict=True
    ):
        assert torch.equal(got, expected)


def test_accept():
    """Against the engine's rule too; counts from none to more than are drafted."""
    from domino.verification.accept import greedy

    generator = torch.Generator().manual_seed(0)
    choices, drafts = (torch.randint(2, (64, n), generator=generator).to(DEVICE) for n in (6, 5))
    counts = torch.arange(64, device=DEVICE) % 7
    kept, said = ops.accept(choices, drafts, counts)
    for got, expected in zip((kept, said), reference.accept(choices, drafts, counts), strict=True):
        assert torch.equal(got, expected)
    accepted, token = greedy(choices.tolist(), drafts.tolist(), counts.clamp(max=5).tolist())
    assert kept.tolist() == accepted
    assert said.gather(1, kept[:, None])[:, 0].tolist() == token
    assert ops.accept(choices[:2, :1], drafts[:2, :0], counts[:2])[0].tolist() == [0, 0]


def test_operators_know_their_shapes_without_running():
    """torch's own check of schema, fake registration and dispatch."""
    z, w2, base = randn(2, 8), randn(30, 8), randn(2, 30)
    for operator, args in {
        ops.gru: (randn(2, 12), randn(2, 4), randn(12, 4)),
        ops.greedy_step: (z, z, w2, base),
        ops.sample: (base, torch.rand(2).to(DEVICE), 1.0, 3, 0.9),
        ops.sample_step: (z, z, w2, base, torch.rand(2).to(DEVICE), 1.0, 3, 0.9),
        ops.gather_pool: (randn(2, 3, 30), w2, torch.tensor([[1, 2], [3, 4]], device=DEVICE)),
        ops.accept: tuple(torch.ones(2, n, dtype=torch.int64, device=DEVICE) for n in (4, 3))
        + (torch.ones(2, dtype=torch.int64, device=DEVICE),),
    }.items():
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))


def test_the_split_of_w1_is_w1():
    w1, h, s = randn(6, 10), randn(2, 7), randn(2, 3)
    w_z, w_s = reference.split_w1(w1, 7)
    torch.testing.assert_close(F.linear(h, w_z) + F.linear(s, w_s), F.linear(torch.cat([h, s], dim=1), w1))
