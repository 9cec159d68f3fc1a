"""The persistent rollout against its twin: greedy with every difference proved to be a tie, sampled given the noise."""

import pytest
import torch

pytest.importorskip("triton")
from domino.doctor.compare import TIES, drawn_from, same_walk
from domino.drafting.head import candidate_pool
from domino.kernels import operators as ops
from domino.kernels import twins
from test_kernels import DEVICE, DTYPES, poison, poisoned, randn, sanitized  # noqa: F401  (fixtures)


def make(batch, slots, gru, rank, vocab, known, dtype, pool=0, seed=0, scale=1.0):
    """Arguments of a rollout, z and base as views of what holds the slot before them."""
    given = torch.randint(vocab, (batch, known), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    z, base = (
        randn(batch, slots + 1, rank, dtype=dtype, seed=seed)[:, 1:],
        randn(batch, slots + 1, vocab, seed=seed)[:, 1:],
    )
    table, w_hh = (
        randn(vocab, 3 * gru, dtype=dtype, seed=seed),
        randn(3 * gru, gru, dtype=dtype, seed=seed, scale=scale),
    )
    w_s, w2 = randn(rank, 5 + gru, dtype=dtype, seed=seed)[:, 5:], randn(vocab, rank, dtype=dtype, seed=seed)
    ids = None
    if pool:
        ids = candidate_pool(base, pool).sort(dim=-1).values
        base, w2 = twins.gather_pool(base, w2, ids)
    return given, z, poisoned(base), table, w_hh, poisoned(w_s), w2, ids


# batch, slots, gru, rank, vocab, known
SHAPES = [(1, 3, 16, 8, 40, 2), (3, 5, 20, 12, 130, 1), (17, 3, 24, 40, 65, 3), (2, 4, 40, 70, 300, 2)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pool", [0, 33])
def test_greedy(dtype, shape, pool):
    args = make(*shape, dtype, pool)
    places = ops.rollout_greedy(*args)
    assert places.shape == (shape[0], shape[1] - shape[5] + 1)
    same_walk(places, args, TIES[dtype])
    # in float32 nothing but a true tie may differ, and random logits have none
    assert dtype != torch.float32 or torch.equal(places, twins.rollout_greedy(*args))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("batch", "known"), [(1, 1), (17, 3), (64, 2)])
@pytest.mark.parametrize("scale", [1.0, 30.0])  # saturated gates
@pytest.mark.parametrize("pool", [0, 33])
def test_logits_of_a_step(dtype, batch, known, scale, pool):
    """q of a draw that cuts nothing is base + W2 SiLU(z + W_s S), with NaN around everything that is read."""
    args = make(batch, known, 20, 24, 65, known, dtype, pool, scale=scale)
    noise = torch.full((batch, 1), 0.5, device=DEVICE)
    _, expected = twins.rollout_sample(*args, noise, 1.0, 0, 1.0)
    args = [poisoned(a) if a is not None and a.is_floating_point() else a for a in args]
    _, q = ops.rollout_sample(*args, noise, 1.0, 0, 1.0)
    off = (q - expected).abs()
    assert off.median() <= 1e-5  # only a state on the edge of two values may be rounded to the other
    assert off.max() <= {**TIES, torch.float32: 1e-3}[dtype]


def test_the_twins_recurrence_is_torchs():
    e, w_ih, w, state = randn(5, 12), randn(60, 12), randn(60, 20), randn(5, 20, seed=1).tanh()
    torch.testing.assert_close(twins.gru_step(e @ w_ih.T, state, w), torch.gru_cell(e, state, w_ih, w))


@pytest.mark.parametrize("batch", [1, 2, 15, 16, 33, 64])
def test_any_batch(batch):
    args = make(batch, 2, 8, 8, 40, 1, torch.float32, pool=17)
    assert torch.equal(ops.rollout_greedy(*args), twins.rollout_greedy(*args))


def first_place(z, w2, base, pooled=False):
    """Greedy places [batch] of base + W2 SiLU(z), from a rollout of one step whose state stays zero; pooled: all tokens as a pool.

    Args:
        z: [batch, rank]. w2: [vocab, rank]. base: [batch, vocab].
    """
    (batch, rank), (vocab, _) = z.shape, w2.shape
    given, ids = torch.zeros(batch, 1, dtype=torch.int64, device=DEVICE), None
    table, w_hh, w_s = (torch.zeros(n, m, dtype=w2.dtype, device=DEVICE) for n, m in ((vocab, 12), (12, 4), (rank, 4)))
    if pooled:
        ids = torch.arange(vocab, device=DEVICE).expand(batch, -1)
        w2 = w2[ids]
    return ops.rollout_greedy(given, z[:, None], base[:, None], table, w_hh, w_s, w2, ids)[:, 0]


@pytest.mark.parametrize("pooled", [False, True])
def test_ties_go_to_the_lowest_place(pooled):
    w2, base = torch.zeros(200, 8, device=DEVICE), torch.zeros(3, 200, device=DEVICE)
    base[1, [70, 140]] = 2.0  # tiles apart
    base[2] = -0.0
    base[2, 9] = 0.0
    assert first_place(randn(3, 8), w2, base, pooled).tolist() == [0, 70, 0]


@pytest.mark.parametrize("pooled", [False, True])
def test_logits_that_are_not_finite(pooled):
    base = randn(4, 90, scale=1e30)
    base[1] = -torch.inf
    base[2, 5] = torch.inf
    base[3, 7], base[3, 8] = torch.nan, 1e38
    places = first_place(randn(4, 8), torch.zeros(90, 8, device=DEVICE), base, pooled)
    assert places.tolist() == [int(base[0].argmax()), 0, 5, 8]


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_stays_nan_when_it_is_rounded(dtype, pooled):
    """A GPU's NaN has all bits set: rounded by a carry it would be a zero, and a text of garbage would have logits."""
    nan = torch.tensor([0x7FFFFFFF], dtype=torch.int32, device=DEVICE).view(torch.float32)
    z, w2, base = randn(2, 8), randn(40, 8, dtype=dtype), randn(2, 40)
    z[1, 3] = nan[0]
    logits = twins.step_logits(z, torch.zeros_like(z), w2, base)
    assert first_place(z, w2, base, pooled).tolist() == [int(logits[0].argmax()), 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_true_vocabulary(dtype):
    """Qwen3's 151,936 tokens: no multiple of the tile beyond 64, the best in the last one."""
    args = make(1, 1, 8, 16, 151936, 1, dtype)
    base = args[2]
    base[0, 0, -1] = 100.0
    assert ops.rollout_greedy(*args).tolist() == [[151935]]
    base[0, 0, -1] = 0.0
    same_walk(ops.rollout_greedy(*args), args, TIES[dtype])


@pytest.mark.slow  # 4 GiB, which the interpreter copies
def test_addresses_beyond_int32():
    """Rows that begin more than 2^31 elements into a buffer, of which only they are ever touched."""
    stride = 2**31 + 64
    # untouched pages of zeros take no memory
    storage = torch.zeros(stride + 512, dtype=torch.float16, device=DEVICE)
    base = storage.as_strided((2, 100), (stride, 1))
    w2, z = torch.zeros(100, 8, device=DEVICE), torch.ones(2, 8, device=DEVICE)
    w2[40] = 1.0
    assert first_place(z, w2, base).tolist() == [40, 40]


def test_saturated():
    """A recurrence that drives every gate to its end, and logits that hide the correction."""
    args = list(make(4, 4, 16, 8, 70, 2, torch.float32, scale=100.0))
    args[2] = args[2] * 1e6
    places = ops.rollout_greedy(*args)
    assert torch.equal(places, twins.rollout_greedy(*args))


@pytest.mark.parametrize("pool", [0, 33])
@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.7, 9, 0.8), (1.5, 0, 0.6)])
def test_sampled_given_the_noise(pool, temperature, top_k, top_p):
    args = make(3, 5, 20, 12, 130, 2, torch.float32, pool)
    noise = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    places, q = ops.rollout_sample(*args, noise, temperature, top_k, top_p)
    expected, expected_q = twins.rollout_sample(*args, noise, temperature, top_k, top_p)
    assert torch.equal(places, expected)
    assert torch.equal(q.isneginf(), expected_q.isneginf())
    torch.testing.assert_close(q, expected_q, atol=1e-4, rtol=1e-4)


def test_sampled_in_bfloat16_draws_from_its_own_q():
    """Rounded states may move q a little, so the draw is checked against the q that was returned."""
    args = make(4, 4, 20, 12, 130, 2, torch.bfloat16, pool=50)
    noise = torch.rand(4, 3, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    places, q = ops.rollout_sample(*args, noise, 0.8, 20, 0.9)
    drawn_from(places, q, noise, 1e-6)


@pytest.mark.skipif(DEVICE == "cuda", reason="a GPU runs its programs together by itself")
@pytest.mark.parametrize("pool", [0, 33])
@pytest.mark.parametrize("programs", [2, 5, 11])
def test_programs_that_wait_for_one_another(pool, programs, monkeypatch):
    """In random turns between barriers every order gives the walk of one program; without the barriers it does not."""
    from lockstep import lockstep

    args = make(3, 5, 40, 36, 130, 2, torch.float32, pool)
    noise = torch.rand(3, 4, generator=torch.Generator().manual_seed(1))
    greedy, (drawn, q) = ops.rollout_greedy(*args), ops.rollout_sample(*args, noise, 0.9, 12, 0.9)
    for seed in range(2):
        with lockstep(monkeypatch, programs, seed) as turns:
            assert torch.equal(ops.rollout_greedy(*args), greedy)
            assert turns.meetings >= 5 * 2
        with lockstep(monkeypatch, programs, seed):
            again = ops.rollout_sample(*args, noise, 0.9, 12, 0.9)
        assert torch.equal(again[0], drawn)
        assert torch.equal(again[1], q)


@pytest.mark.skipif(DEVICE == "cuda", reason="as above")
@pytest.mark.parametrize("pool", [0, 33])
@pytest.mark.parametrize("missing", [0, 1, 2, 3])
def test_each_barrier_is_needed(missing, pool, monkeypatch):
    """The test above would notice: where programs run past one of the four barriers of a step, the walks differ."""
    from lockstep import lockstep

    args = make(
        3, 5, 40, 36, 130, 1, torch.float32, pool
    )  # one token given: each of the five steps has all its barriers
    noise = torch.rand(3, 5, generator=torch.Generator().manual_seed(1))
    # a pick that is read before it is made is token 0, rather than an address outside the tables
    monkeypatch.setattr("domino.kernels.rollout.LOWEST_SCORE", -(2**63) + 0xFFFFFFFF)
    drawn, q = ops.rollout_sample(*args, noise, 0.9, 12, 0.9)
    for seed in range(4):
        with lockstep(monkeypatch, 5, seed) as turns:
            turns.skip = lambda target: (target // 5 - 1) % 4 == missing
            again, again_q = ops.rollout_sample(*args, noise, 0.9, 12, 0.9)
        if not (torch.equal(again, drawn) and torch.equal(again_q, q)):
            return
    pytest.fail("nothing differed")


def test_the_interpreter_never_waits_for_programs():
    """It runs them one after another, on a machine with a GPU too, where the second would never come."""
    from domino.kernels.rollout import programs_at_once

    if DEVICE == "cuda":
        assert programs_at_once(torch.device(DEVICE)) == torch.cuda.get_device_properties(DEVICE).multi_processor_count
    else:
        assert programs_at_once(torch.device("cuda")) == 1


def test_fake_registration():
    args = make(2, 4, 8, 8, 40, 2, torch.float32, pool=17)
    torch.library.opcheck(ops.rollout_greedy, args, test_utils=("test_schema", "test_faketensor"))
    noise = torch.rand(2, 3).to(DEVICE)
    torch.library.opcheck(
        ops.rollout_sample, (*args, noise, 1.0, 3, 0.9), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("pool", [0, 1024])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_published_shapes_on_the_device(pool, batch):
    """Qwen3-8B's head, many times over: a race would show as another walk."""
    args = make(batch, 16, 1024, 256, 151936, 2, torch.bfloat16, pool, scale=0.03)
    first = ops.rollout_greedy(*args)
    same_walk(first, args, TIES[torch.bfloat16])
    for _ in range(50):
        assert torch.equal(ops.rollout_greedy(*args), first)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("pool", [0, 1024])
@pytest.mark.parametrize("batch", [1, 8, 32])
@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (20, 0.95)])
def test_sampling_published_shapes_on_the_device(pool, batch, top_k, top_p):
    """The same with a draw: the same tokens and q each time, and drawn from that q."""
    args = list(make(batch, 16, 1024, 256, 151936, 2, torch.bfloat16, pool, scale=0.03))
    args[6] = args[6] * 0.01  # corrections of the size of base logits, so that many tokens are likely
    noise = torch.rand(batch, 15, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    places, q = ops.rollout_sample(*args, noise, 0.8, top_k, top_p)
    drawn_from(places, q, noise, 5e-5)  # hundreds of partial sums in float32
    for _ in range(10):
        again, again_q = ops.rollout_sample(*args, noise, 0.8, top_k, top_p)
        assert torch.equal(again, places)
        assert torch.equal(again_q, q)
