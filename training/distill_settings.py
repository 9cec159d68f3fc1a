"""The options of `domino distill`: their defaults, their help, and checks."""

from __future__ import annotations

from argparse import ArgumentParser, BooleanOptionalAction
from dataclasses import dataclass
from pathlib import Path

from ..configuration_domino import evenly_spaced_layers

ABOUT = (
    "Let a target answer prompts. A run can be stopped at any point: the same command resumes it. "
    "`accelerate launch -m domino distill ...` shares it between GPUs, `torchrun -m domino distill ...` between processes on a CPU."
)


def add_options(parser: ArgumentParser) -> None:
    """Add them to a parser; they become the fields of `DistillSettings`."""
    add, kinds = parser.add_argument, ["bfloat16", "float32", "float16"]
    add("--target", required=True, help="folder or Hub id of the target, or smollm2 for the embedded one")
    add("--prompts", required=True, help="JSON lines (.jsonl), a mix (.yaml), or a Hub id or folder of a dataset")
    add("--out", type=Path, required=True, metavar="FOLDER", help="for the shards and provenance.json")
    add("--prompts-root", type=Path, metavar="FOLDER", help="where the files of a mix lie (default: beside it)")
    add(
        "--bad-lines", choices=["fail", "skip"], default="fail", help="lines that hold no prompt (default: %(default)s)"
    )
    add("--limit", type=int, metavar="N", help="answer N prompts of the shuffled mix (default: all)")
    add("--seed", type=int, metavar="N", help="of shuffling and sampling (default: the mix's, or 0)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0, the default, is greedy; a mix may name others")
    add("--top-p", type=float, default=1.0, metavar="P", help="of sampled answers (default: %(default)s)")
    add("--max-new-tokens", type=int, default=192, metavar="N", help="tokens of an answer (default: %(default)s)")
    add("--max-prompt-tokens", type=int, default=320, metavar="N", help="longer are left out (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="prompts of a batch and shard (default: %(default)s)")
    add("--thinking", action=BooleanOptionalAction, help="enable_thinking of the chat template (default: its own)")
    add("--dtype", choices=kinds, default="bfloat16", help="of the target (default: %(default)s)")
    add("--features", metavar="LAYERS", help="also store outputs of target layers: 1,8,14 or auto:5 (default: none)")
    add("--last-hidden", action="store_true", help="also store final hidden states, which soft labels need")
    add("--threads", type=int, metavar="N", help="torch threads of a process (default: torch's)")


@dataclass
class DistillSettings:
    """One field for each option; None leaves the choice to the mix, the template or torch.

    Raises:
        `ValueError`: a number out of its range, or options that do not go together.
    """

    target: str
    prompts: str
    out: Path
    prompts_root: Path | None
    bad_lines: str
    limit: int | None
    seed: int | None
    temperature: float
    top_p: float
    max_new_tokens: int
    max_prompt_tokens: int
    batch_size: int
    thinking: bool | None
    dtype: str
    features: str | None
    last_hidden: bool
    threads: int | None

    def __post_init__(self):
        for name in ("max_new_tokens", "max_prompt_tokens", "batch_size", "limit", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
        if self.temperature < 0:
            raise ValueError(f"--temperature must be 0 (greedy) or more, got {self.temperature}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"--top-p must be above 0 and at most 1, got {self.top_p}.")
        if self.last_hidden and not self.features:
            raise ValueError("--last-hidden goes with --features: without them the trainer asks the target for both.")


def feature_layers(text: str | None, num_layers: int) -> list[int]:
    """Layers of "1,8,14" or "auto:3" (evenly spaced by the published formula); None is no layer.

    Raises:
        `ValueError`: neither, or not different layers of the target.
    """
    if text is None:
        return []
    auto, _, number = text.partition(":")
    try:
        layers = evenly_spaced_layers(num_layers, int(number)) if auto == "auto" else [int(i) for i in text.split(",")]
    except ValueError:
        layers = []
    if not layers or len(set(layers)) < len(layers) or not all(0 <= i < num_layers for i in layers):
        raise ValueError(
            f"--features takes different layers of the target, 0 … {num_layers - 1}, such as 1,8,14, or auto:N for N evenly "
            f"spaced ones, got {text!r}."
        )
    return layers
