"""What one round takes here, in each way that is allowed here."""

import statistics
import time
from typing import Any

import torch

from ..acceleration import graphs
from ..embedded.smollm2 import unpacked
from ..evaluation.answering import encode
from ..evaluation.demo import QUESTION
from ..evaluation.run import load_models
from ..evaluation.settings import ModelSettings
from ..generation.engine import generate
from ..kernels import seam
from .pair import prompts, tiny_pair

TOKENS, REPEATS = 32, 2
TINY = "a tiny random pair, whose times say nothing of a model's (`domino smollm2` unpacks a real one)"


def rounds(device: torch.device) -> dict[str, Any]:
    """Plain `generate` and the engine on one prompt, in bfloat16, in turn.

    Returns:
        pair: which models. ways: name -> milliseconds of a round (median of the fastest run; of plain `generate`, a token), tokens
        a round, tokens per second.
    """
    name, target, draft, ids = _pair(device)
    found: dict[str, dict[str, float]] = {}
    ways = _ways(device)
    for repeat in range(1 + REPEATS):  # the first warms up
        for way, how in ways.items():
            measured = _once(target, draft, ids, how)
            if repeat == 1 or repeat and measured["tokens_per_second"] > found[way]["tokens_per_second"]:
                found[way] = measured
    return {"pair": name, "device": str(device), "ways": found}


def _pair(device: torch.device) -> tuple[str, Any, Any, torch.Tensor]:
    if unpacked() is None:
        return TINY, *tiny_pair(device, torch.bfloat16), prompts(device, 1)[0]
    models = load_models(ModelSettings(), "bfloat16")
    ids = encode(models.tokenizer, QUESTION, device)["input_ids"]
    return "SmolLM2-135M-Instruct and its drafter", models.target.to(device), models.draft.to(device), ids


def _ways(device: torch.device) -> dict[str, dict[str, Any] | None]:
    """Name -> settings of the engine, None for plain `generate`; of Triton and graphs what passed."""
    ways: dict[str, dict[str, Any] | None] = {"plain generate": None, "engine": {}}
    if device.type == "cpu":
        return {**ways, "engine, pack=False": {"pack": False}}
    if device.type == "cuda" and graphs.passed(device):
        ways["engine, graphs=False"] = {"graphs": False}
    if device.type == "cuda" and seam.uses_triton(device):
        ways["engine, DOMINO_KERNELS=torch"] = {"kernels": "torch"}
    return ways


def _once(target: Any, draft: Any, ids: torch.Tensor, how: dict[str, Any] | None) -> dict[str, float]:
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(ids)
    seen: list[float] = []
    began = time.perf_counter()
    if how is None:
        target.generate(ids, **options).tolist()  # waits for the device
        seconds = time.perf_counter() - began
        return _measured(seconds / TOKENS, TOKENS, TOKENS, seconds)
    own = {name: value for name, value in how.items() if name != "kernels"}

    def hear(row: int, what: Any) -> None:
        seen.append(time.perf_counter())

    with seam.forced(how.get("kernels") or seam.choice()):
        generate(target, draft, ids, on_round=hear, **own, **options).tolist()
    seconds = time.perf_counter() - began
    gaps = [after - before for before, after in zip(seen, seen[1:], strict=False)] or [seconds]
    return _measured(statistics.median(gaps), len(seen), TOKENS, seconds)


def _measured(a_round: float, count: int, tokens: int, seconds: float) -> dict[str, float]:
    return {
        "ms_per_round": round(1000 * a_round, 2),
        "tokens_per_round": round(tokens / max(count, 1), 2),
        "tokens_per_second": round(tokens / seconds, 1),
    }
