"""What runs on this device and what does not: the facts of `domino doctor`."""

import importlib.util
import os
from collections.abc import Callable
from typing import Any

import torch

from ..acceleration import graphs
from ..acceleration.packed_linear import PackedLinear
from ..acceleration.view import decoding_view
from ..devices.gate import check
from ..devices.verdict import Verdict, folder
from ..generation.engine import generate
from ..kernels import seam
from .compare import must
from .pair import prompts, tiny_pair
from .timing import rounds
from .versions import devices, machine, versions

RIGHT, WRONG, ABSENT, UNKNOWN = "right", "wrong", "not here", "could not run"
Finding = dict[str, Any]  # state, one of the above; found: in words; cases: each one's result, where there are several


def examine(name: str | None) -> dict[str, Any]:
    """All facts about a device; the verdicts on Triton and graphs are made anew and kept.

    Args:
        name: of the device; None is the first GPU, or the CPU where there is none.

    Returns:
        what can be written as JSON: versions, machine, devices, device, checks (name -> `Finding`), round, verdicts (their folder).

    Raises:
        `ValueError`: there is no such device here.
    """
    device = _device(name)
    checks = {
        "lossless": _try(_lossless, device),
        "packing": _try(_packing, device),
        "triton": _triton(device),
    }
    checks["graphs"] = _graphs(device)  # with the head's kernels as they run by now
    return {
        "versions": versions(),
        "machine": machine(),
        "devices": devices(),
        "device": str(device),
        "checks": checks,
        "round": rounds(device),
        "verdicts": _folder(),
    }


def _device(name: str | None) -> torch.device:
    if name is None:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ValueError(
            f"--device {name} cannot be used here: {reason}. Take cpu or a GPU that torch sees."
        ) from error
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def _try(work: Callable[[torch.device], str | None], device: torch.device) -> Finding:
    """What work found, or why it is absent (None is fine), or what was wrong with it."""
    try:
        absent = work(device)
    except Exception as error:
        return {"state": WRONG, "found": f"{type(error).__name__}: {error}"}
    return {"state": ABSENT, "found": absent} if absent else {"state": RIGHT, "found": ""}


def _lossless(device: torch.device) -> None:
    """The engine's greedy text is plain `generate`'s, with the head in torch and nothing recorded."""
    dtype = torch.float32 if device.type == "mps" else torch.float64  # which has no float64
    target, draft = tiny_pair(device, dtype)
    for rows in (1, 3):
        ids, mask = prompts(device, rows)
        options: dict[str, Any] = {
            "attention_mask": mask,
            "max_new_tokens": 40,
            "do_sample": False,
            "eos_token_id": None,
        }
        with seam.forced("torch"):
            ours = generate(target, draft, ids, graphs=False, **options)
        must(torch.equal(ours, target.generate(ids, **options)), f"another text than plain generate's, {rows} rows")


def _packing(device: torch.device) -> str | None:
    """A view with packed weights computes what the model computes, up to bfloat16's rounding."""
    if device.type != "cpu":
        return "weights are packed on a CPU only"
    target, _ = tiny_pair(device, torch.bfloat16)
    view = decoding_view(target, True)
    if not any(isinstance(module, PackedLinear) for module in view.modules()):
        return "this processor has no units for bfloat16, or memory is short: take dtype float32"
    ids, _ = prompts(device, 1)
    with torch.no_grad():
        got, expected = view(ids).logits.float(), target(ids).logits.float()
    off = (got - expected).abs().max() / expected.abs().max()
    must(off < 0.05, f"packed weights give other logits, {off:.2g} of the largest apart")
    return None


def _triton(device: torch.device) -> Finding:
    if importlib.util.find_spec("triton") is None:
        return {"state": ABSENT, "found": "the package triton is not installed"}
    if not seam.able(device) and os.environ.get("TRITON_INTERPRET") != "1":
        return {"state": ABSENT, "found": "the kernels are for NVIDIA's GPUs of compute capability 8.0 or higher"}
    return _finding(check("triton", seam.CASES, device))


def _graphs(device: torch.device) -> Finding:
    if graphs.recorder(device) is None:
        return {"state": ABSENT, "found": "CUDA graphs are for CUDA devices"}
    return _finding(graphs.checked_anew(device))


def _finding(verdict: Verdict) -> Finding:
    state = {True: RIGHT, False: WRONG, None: UNKNOWN}[verdict.passed]
    return {"state": state, "found": verdict.reason, "seconds": verdict.seconds, "cases": verdict.cases}


def _folder() -> str:
    try:
        return str(folder())
    except OSError as error:
        return f"none, as it cannot be written: {error}"
