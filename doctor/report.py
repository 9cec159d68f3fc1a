"""`domino doctor` in words: the facts, a verdict, and what to set."""

import json
from typing import Any

from transformers.utils import logging

from .examine import RIGHT, UNKNOWN, WRONG, examine

LABELS = {
    "lossless": "engine's text = plain generate's",
    "packing": "packed bfloat16 weights",
    "triton": "Triton kernels = their torch twins",
    "graphs": "CUDA graphs = eager",
}
FASTER = 1.05  # what is less than this apart is not worth a setting


def doctor(device: str | None, as_json: bool) -> bool:
    """Examine, print, and say whether all is fine."""
    logging.disable_progress_bar()
    facts = examine(device)
    fine, lines = verdict(facts)
    facts["verdict"] = {"fine": fine, "lines": lines}
    print(json.dumps(facts, indent=2) if as_json else text(facts))
    return fine


def verdict(facts: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether nothing failed, and what to do, a sentence each."""
    checks, fine = facts["checks"], not any(f["state"] in (WRONG, UNKNOWN) for f in facts["checks"].values())
    lines = []
    if checks["lossless"]["state"] == WRONG:
        lines.append(
            "Do not use Domino on this device: its text differs. Please report this with `domino doctor --json`."
        )
    if checks["packing"]["state"] == WRONG:
        lines.append("Set pack=False: packed weights compute something else here. Please report this.")
    for name, off in (("triton", "the head runs in torch"), ("graphs", "operations are launched one by one")):
        if checks[name]["state"] == WRONG:
            lines.append(f"{LABELS[name]}: failed, so {off}. Nothing to set. Please report this.")
        if checks[name]["state"] == UNKNOWN:
            lines.append(f"{LABELS[name]}: unknown, so {off}. Free the device's memory and run this again.")
    lines += _settings(facts)
    if fine:
        lines.insert(0, f"All that is for {facts['device']} works here.")
    return fine, lines


def _settings(facts: dict[str, Any]) -> list[str]:
    """What measured faster than the defaults, and what waits badly."""
    ways, lines = facts["round"]["ways"], []
    engine = ways["engine"]["tokens_per_second"]
    best, speed = max(((name, way["tokens_per_second"]) for name, way in ways.items()), key=lambda pair: pair[1])
    if speed > FASTER * engine and "tiny" not in facts["round"]["pair"]:
        name = best.removeprefix("engine, ")
        lines.append(f"{name} was {speed / engine:.2f}x as fast as the defaults: measure it with your own models.")
    on_cpu = facts["device"] == "cpu"
    if on_cpu and "OMP_WAIT_POLICY" not in facts["machine"]["variables"]:
        lines.append("Set OMP_WAIT_POLICY=PASSIVE in the environment if other work shares this CPU.")
    if on_cpu and facts["checks"]["packing"]["state"] == RIGHT:
        lines.append("Load models in bfloat16: their weights are packed here.")
    return lines


def text(facts: dict[str, Any]) -> str:
    """Everything for a terminal."""
    parts = ["  ".join(f"{name} {value}" for name, value in facts["versions"].items()), _machine(facts["machine"])]
    parts += [f"{gpu['device']}: {gpu['name']}, {gpu['capability']}, {_memory(gpu)}" for gpu in facts["devices"]]
    parts += ["", f"Checked on {facts['device']}:"]
    for name, finding in facts["checks"].items():
        parts.append(f"  {LABELS[name]:36}{finding['state']}{': ' if finding['found'] else ''}{finding['found']}")
        wrong = {case: why for case, why in finding.get("cases", {}).items() if why != RIGHT}
        parts += [f"    {case}: {why}" for case, why in wrong.items() if len(wrong) > 1]
    parts += ["", f"One round, {facts['round']['pair']}, bfloat16:"]
    for name, way in facts["round"]["ways"].items():
        measured = f"{way['ms_per_round']:8.1f} ms {way['tokens_per_round']:6.2f} tokens a round"
        parts.append(f"  {name:36}{measured}{way['tokens_per_second']:9.1f} tokens/s")
    parts += ["", f"Verdicts are kept in {facts['verdicts']}.", "", *facts["verdict"]["lines"]]
    return "\n".join(parts)


def _machine(machine: dict[str, Any]) -> str:
    """Processor, threads and memory."""
    settings = " ".join(f"{name}={value}" for name, value in machine["variables"].items())
    return f"{machine['processor']}, {machine['threads']} threads, {_memory(machine)}  {settings}".rstrip()


def _memory(of: dict[str, Any]) -> str:
    return f"{of['memory'] / 2**30:.1f} GiB, {of['memory_free'] / 2**30:.1f} free"
