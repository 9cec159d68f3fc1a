"""In which order this machine adds: what a product's sums depend on besides their terms.

Two orders of the same sum round differently. On a CPU with matrix units in bfloat16 the order of a product depends on its shape, but
most shapes share one, which is found here by sums whose terms cancel: what is left of them is rounding, so any other order shows.

Worked example, AMX and SmolLM2's `down_proj`, 1,536 inputs, packed: 1 to 128 rows share one order, 150 rows have another. So 200 rows
are two products, of 128 and of 72 rows, and each row comes out as if it were alone.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional as F

from . invariant_attention import STEP, weighted  # fmt: skip  # isort: skip
from . packed_linear import RowLimits, packed_for_few, packed_product  # fmt: skip  # isort: skip
from . tree_values import TILE  # fmt: skip  # isort: skip

# Numbers of rows that are tried. They are dense where verifications are, and an order changes with the matrix units' blocks of 16 rows.
ROWS = (1, 2, 5, 9, 13, 16, 17, 25, 32, 33, 48, 64, 96, 128, 256, 512)
MOST = (512, 256, 128, 64, 32)  # rows of a product, the largest of which is taken
OUTPUTS = 1024  # columns tried at most: they do not meet in a sum
KEYS = (64, 1088)  # numbers of keys tried
FEW = 16  # rows of the products that all others are compared with


def cancelling(rows: int, columns: int, inner: int) -> tuple[Tensor, Tensor]:
    """[rows, inner] and [columns, inner] in bfloat16: the exact products are 0, as for each term there is one that takes it back."""
    generator = torch.Generator().manual_seed(inner)
    left, right = (torch.randn(count, inner // 2, generator=generator) for count in (rows, columns))
    places = torch.randperm(inner // 2 * 2, generator=generator)
    terms = torch.cat([left, left], dim=1)[:, places], torch.cat([right, -right], dim=1)[:, places]
    one, other = (F.pad(term, (0, inner % 2)).to(torch.bfloat16) for term in terms)
    return one, other


def row_limits(inputs: int, outputs: int, packed: bool) -> RowLimits | None:
    """How many rows a linear layer may read at once so that each has the bits it has among few; None: no such number was found."""
    return _row_limits(inputs, min(outputs, OUTPUTS), packed, torch.get_num_threads())


@cache
@torch.no_grad()
def _row_limits(inputs: int, outputs: int, packed: bool, threads: int) -> RowLimits | None:
    x, weight = cancelling(ROWS[-1], outputs, inputs)
    product: Callable[[Tensor], Tensor] = partial(F.linear, weight=weight)
    if packed:
        product = partial(packed_product, packed=packed_for_few(weight), bias=None)
    expected = torch.cat([product(part) for part in x.split(FEW)])
    differ: list[int] = []
    for rows in ROWS:
        if not torch.equal(product(x[:rows]), expected[:rows]):
            differ.append(rows)
    least = 2 if 1 in differ else 1
    first = min((rows for rows in differ if rows > 1), default=ROWS[-1] + 1)
    most = next((most for most in MOST if most < first), None)
    return None if most is None else RowLimits(least, most)


def attention_keeps_order(groups: int, shared: int, width: int) -> bool:
    """Whether `invariant_attention` gives a row the same bits among any rows, batches, hidden keys and empty tiles.

    Args:
        groups: key heads. shared: query heads of each. width: of a head.
    """
    return _attention_keeps_order(groups, shared, width, torch.get_num_threads())


@cache
@torch.no_grad()
def _attention_keeps_order(groups: int, shared: int, width: int, threads: int) -> bool:
    queries = [shared * tokens for tokens in (1, 5, 11, 14, 33, 128)]
    holds = all(_keys_keep_order(keys, groups, width, queries[:-1]) for keys in KEYS)
    return holds and _keys_keep_order(KEYS[1], groups, width, queries[-1:]) and _softmax_keeps_order(queries[:-1])


def _keys_keep_order(keys: int, groups: int, width: int, queries: list[int]) -> bool:
    p, v = cancelling(queries[-1], width, keys)
    q, k = cancelling(queries[-1], keys, width)
    v = v.t().contiguous()
    expected = torch.cat([torch.bmm(part[None], v[None])[0] for part in p.split(FEW)])
    scores = torch.cat([torch.bmm(part[None], k.t()[None])[0] for part in q.split(FEW)])
    # an empty tile, and 64 more keys, as they stand before, between and behind those of a path
    wide = F.pad(p, (0, STEP)), F.pad(v, (0, 0, 0, STEP))
    apart = [F.pad(torch.cat([t[:TILE], 0 * t[:TILE], t[TILE:]]), (0, 0, 0, TILE)) for t in (p.t(), v)]
    layouts = (p, v), wide, (apart[0].t(), apart[1])
    for rows in queries:
        for batch in (groups, 2 * groups) if rows == queries[0] else (groups,):
            for weights, value in layouts:
                out = weighted(_repeat(weights[:rows], batch), _repeat(value, batch))
                if not torch.equal(out, _repeat(expected[:rows], batch)):
                    return False
            if not torch.equal(
                torch.bmm(_repeat(q[:rows], batch), _repeat(k, batch).transpose(1, 2)), _repeat(scores[:rows], batch)
            ):
                return False
    return True


def _softmax_keeps_order(queries: list[int]) -> bool:
    scores = torch.randn(queries[-1], 4 * STEP, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = torch.cat([part.softmax(-1) for part in scores.split(1)])
    hidden = F.pad(scores, (0, STEP), value=-torch.inf)
    return all(
        torch.equal(scores[:rows].softmax(-1), expected[:rows])
        and torch.equal(hidden[:rows].softmax(-1)[:, : 4 * STEP], expected[:rows])
        for rows in queries
    )


def _repeat(x: Tensor, batch: int) -> Tensor:
    return x.expand(batch, -1, -1).contiguous()
