"""Every kernel built ahead of time, no GPU needed: `python -m domino.kernels.aot` (with TRITON_INTERPRET unset).

Shows that all of them compile for an architecture, and with ptxas' own words that none spills registers to memory.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.knobs import nvidia

from . accept import accept_kernel  # fmt: skip  # isort: skip
from . common import rounding, tile, triton, wide  # fmt: skip  # isort: skip
from . greedy_step import greedy_kernel, scores_config  # fmt: skip  # isort: skip
from . gru import gru_config, gru_kernel  # fmt: skip  # isort: skip
from . pool import pool_kernel  # fmt: skip  # isort: skip
from . rollout import LAUNCH, rollout_config, rollout_kernel  # fmt: skip  # isort: skip
from . sample_step import SAMPLE_LAUNCH, SAMPLE_TILE, sample_kernel, scores_kernel  # fmt: skip  # isort: skip

ARCHITECTURES = (80, 90, 120)
RANK, GRU, VOCAB = 256, 1024, 151936  # the published drafters'
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Build:
    """One kernel with its launch settings. types: of the arguments that are not plain int32; constants: its constexprs."""

    name: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    options: dict[str, Any]


def builds(weights: str) -> Iterator[Build]:
    """All launches with weights of one of `DTYPES`."""
    dtype = DTYPES[weights]
    rounds = {"WIDE": wide(dtype), "ROUND": rounding(dtype)}
    w, f, i = f"*{weights}", "*fp32", "*i64"
    step = {"z": w, "s": f, "w2": w, "base": f}
    draw = {"temperature": "fp32", "top_p": "fp32"}
    yield Build(
        "gru",
        gru_kernel,
        {"x": w, "before": f, "after": f, "w_hh": w},
        {**gru_config(GRU, dtype), **rounds},
        {"num_warps": 4},
    )
    yield Build(
        "greedy_step",
        greedy_kernel,
        {**step, "best": i},
        {**scores_config(RANK, VOCAB, dtype), **rounds},
        {"num_warps": 4},
    )
    yield Build(
        "scores",
        scores_kernel,
        {**step, "logits": f},
        {**scores_config(RANK, VOCAB, dtype), **rounds},
        {"num_warps": 4},
    )
    cut = {"K": True, "P": True, "BLOCK": SAMPLE_TILE}
    yield Build("sample", sample_kernel, {"logits": f, "noise": f, "drawn": i, **draw}, cut, SAMPLE_LAUNCH)
    pool = {"base": f, "w2": w, "ids": i, "rows": w, "pooled": f}
    yield Build("pool", pool_kernel, pool, {"BV": 32, "BK": tile(RANK, 256)}, {"num_warps": 4})
    accept = dict.fromkeys(("choices", "drafts", "counts", "accepted", "said"), i)
    yield Build("accept", accept_kernel, accept, {"BN": 32}, {"num_warps": 1})
    pointers = dict.fromkeys(("given", "ids", "best"), i) | dict.fromkeys(("base", "noise", "state", "code", "q"), f)
    pointers |= dict.fromkeys(("z", "table", "w_hh", "w_s", "w2"), w) | {"counter": "*i32"}
    shape = {
        **rollout_config(GRU, RANK, VOCAB, dtype),
        "WIDE_GRU": rounds["WIDE"],
        "ROUND_GRU": rounds["ROUND"],
        **rounds,
    }
    for pooled in (False, True):
        for sampled in (False, True):
            name = f"rollout_{'sample' if sampled else 'greedy'}{'_pool' if pooled else ''}"
            constants = {**shape, "POOL": pooled, "SAMPLE": sampled, "K": sampled, "P": sampled}
            yield Build(
                name, rollout_kernel, {**pointers, **draw}, constants, {**LAUNCH, "launch_cooperative_grid": True}
            )


def cubin(build: Build, architecture: int) -> tuple[bytes, int]:
    """The binary and its shared memory in bytes."""
    names = build.kernel.arg_names
    signature = {name: "constexpr" if name in build.constants else build.types.get(name, "i32") for name in names}
    attributes = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if signature[name].startswith("*")}
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
    for architecture in architectures:
        for dtype in weights:
            for build in builds(dtype):
                binary, shared = cubin(build, architecture)
                row = {
                    "kernel": build.name,
                    "sm": architecture,
                    "weights": dtype,
                    "bytes": len(binary),
                    "shared": shared,
                }
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
