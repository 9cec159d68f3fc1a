"""Every kernel built ahead of time, no GPU needed: `python -m domino.kernels.aot` (with TRITON_INTERPRET unset).

Built are the binaries that a launch with Qwen3-8B's shapes would compile: Triton makes another for an integer that 16 divides, on
which it depends how wide memory is read and what is pipelined. Shows that all of them compile for an architecture, and with ptxas' own words that none spills registers to memory.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.knobs import nvidia

from . common import VARYING, rounding, tile, triton, wide  # fmt: skip  # isort: skip
from . pool import pool_kernel  # fmt: skip  # isort: skip
from . rollout import LAUNCH, rollout_config, rollout_kernel  # fmt: skip  # isort: skip
from . sample import SAMPLE_LAUNCH, SAMPLE_TILE, sample_kernel  # fmt: skip  # isort: skip

ARCHITECTURES = (80, 90, 120)
RANK, GRU, VOCAB, HIDDEN, DRAFTS = 256, 1024, 151936, 4096, 16  # the published drafter's for Qwen3-8B
POOL = 1024
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Build:
    """One kernel with its launch settings. types: of the arguments that are no int32; sizes: values of those that are specialised;
    constants: its constexprs."""

    name: str
    kernel: Any
    types: dict[str, str]
    sizes: dict[str, int]
    constants: dict[str, Any]
    options: dict[str, Any]


def builds(weights: str) -> Iterator[Build]:
    """All launches with weights of one of `DTYPES`: the single operators, then the rollouts."""
    w, f, i = f"*{weights}", "*fp32", "*i64"
    draw = {"logits": f, "noise": f, "drawn": i, "temperature": "fp32", "top_p": "fp32"}
    cut = {"K": True, "P": True, "BLOCK": SAMPLE_TILE}
    yield Build("sample", sample_kernel, draw, {"size": VOCAB}, cut, SAMPLE_LAUNCH)
    pool = {"base": f, "w2": w, "ids": i, "rows": w, "pooled": f}
    pooled = {"base_stride": DRAFTS * VOCAB, "slot_stride": VOCAB, "w2_stride": RANK}
    pooled |= {"size": POOL, "rank": RANK}
    yield Build("pool", pool_kernel, pool, pooled, {"BV": 32, "BK": tile(RANK, 256)}, {"num_warps": 4})
    yield from _rollouts(weights)


def _rollouts(weights: str) -> Iterator[Build]:
    """Greedy and sampled, over the vocabulary and over a pool, after one draft without a correction."""
    dtype = DTYPES[weights]
    types = dict.fromkeys(("given", "ids", "best"), "*i64") | dict.fromkeys(
        ("z", "table", "w_hh", "w_s", "w2"), f"*{weights}"
    )
    types |= dict.fromkeys(("base", "noise", "state", "code", "q"), "*fp32") | {"counter": "*i32"}
    types |= {"temperature": "fp32", "top_p": "fp32"}
    tiles = rollout_config(GRU, RANK, VOCAB, dtype)
    tiles |= {"WIDE": wide(dtype), "WIDE_GRU": wide(dtype), "ROUND": rounding(dtype), "ROUND_GRU": rounding(dtype)}
    sizes = {"gru": GRU, "rank": RANK, "w2_stride": RANK}
    sizes |= {
        "z_batch": DRAFTS * RANK,
        "z_slot": RANK,
        "table_stride": 3 * GRU,
        "hh_stride": GRU,
        "s_stride": HIDDEN + GRU,
    }
    for size, rows in ((VOCAB, 0), (POOL, POOL * RANK)):
        over = {**sizes, "size": size, "base_batch": DRAFTS * size, "base_slot": size, "w2_batch": rows}
        for sampled in (False, True):
            name = f"rollout_{'sample' if sampled else 'greedy'}{'_pool' if rows else ''}"
            constants = {**tiles, "POOL": bool(rows), "SAMPLE": sampled, "K": sampled, "P": sampled}
            options = {**LAUNCH, "launch_cooperative_grid": True}
            yield Build(name, rollout_kernel, types, over, constants, options)


def cubin(build: Build, architecture: int) -> tuple[bytes, int]:
    """The binary and its shared memory in bytes.

    Worked example: rank 256 is compiled as an int32 that 16 divides, a stride of 17 and the batch as any int32.
    """
    names = build.kernel.arg_names
    types = build.types | dict.fromkeys((*build.sizes, *VARYING), "i32")
    signature = {name: "constexpr" if name in build.constants else types[name] for name in names}
    divided = [name for name in names if signature[name].startswith("*") or build.sizes.get(name, 1) % 16 == 0]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in divided}
    source = ASTSource(build.kernel, signature, constexprs=build.constants, attrs=attributes)
    compiled = compile(source, target=GPUTarget("cuda", architecture, 32), options=build.options)
    return compiled.asm["cubin"], compiled.metadata.shared


def usage(binary: bytes) -> dict[str, int]:
    """Registers, and bytes of stack and local memory a thread needs: spilled registers lie in either."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        text = subprocess.run(
            [nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name.lower(): int(re.search(rf"\b{name}:(\d+)", text)[1]) for name in ("REG", "STACK", "LOCAL")}  # type: ignore[index]


def build_all(architectures: list[int], weights: list[str]) -> list[dict[str, Any]]:
    """Every kernel for every architecture and dtype of weights, with what it uses."""
    found = []
    for architecture, dtype in product(architectures, weights):
        for build in builds(dtype):
            binary, shared = cubin(build, architecture)
            row = {"kernel": build.name, "sm": architecture, "weights": dtype, "bytes": len(binary), "shared": shared}
            found.append({**row, **usage(binary)})
    return found


def main() -> None:
    """Print one JSON object a binary; exit status 1 if any spills."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sm", type=int, nargs="+", default=list(ARCHITECTURES), help="architectures")
    parser.add_argument("--weights", nargs="+", default=["bf16"], choices=list(DTYPES))
    args = parser.parse_args()
    if triton.knobs.runtime.interpret:
        parser.error("TRITON_INTERPRET is set: interpreted kernels cannot be compiled.")
    rows = build_all(args.sm, args.weights)
    for row in rows:
        print(json.dumps(row))
    if spilled := [row["kernel"] for row in rows if row["stack"] or row["local"]]:
        parser.exit(1, f"Registers spill in {', '.join(spilled)}.\n")


if __name__ == "__main__":
    main()
