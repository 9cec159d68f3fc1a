"""The options of `domino bench` and the settings they make."""

from __future__ import annotations

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, Namespace
from dataclasses import dataclass, field, fields

from ...embedded.smollm2 import NAME
from ...settings import DTYPES, Dtype, build, require
from .shapes import TARGETS

ABOUT = (
    "Time the stages of a round on random weights, beside their rooflines, and project the speedup for given τ. "
    "Needs no weights: any target and drafter that a config describes."
)


@dataclass
class BenchSettings:
    """One latency model.

    Attributes:
        target: a name of `shapes.TARGETS`, a config.json, its folder, or a Hub id. drafter: a folder, config.json or Hub id;
            by default the one shipped for the target, else the published shape.
        contexts: tokens in the target's cache. batches: sequences. verify: tokens of the target's forwards; 1 and the number
            of drafts + 1 are always timed. tau: tokens per round to project for, the bonus token included.
        layers: the most target layers to build; None decides by the free memory (`latency.depths`).
        repeats: timed runs of each point. out: the JSON file; the Markdown goes beside it.
    """

    target: str = NAME
    drafter: str | None = None
    dtype: Dtype = "bfloat16"
    contexts: list[int] = field(default_factory=lambda: [512, 2048])
    batches: list[int] = field(default_factory=lambda: [1, 4])
    verify: list[int] = field(default_factory=lambda: [2, 4, 8, 16])
    tau: list[float] = field(default_factory=lambda: [2, 3, 4, 6, 8])
    layers: int | None = None
    repeats: int = 7
    out: str = "bench.json"

    def __post_init__(self):
        for name in ("contexts", "batches", "verify", "tau"):
            values = getattr(self, name)
            require(bool(values), name, values, "must name at least one value")
            require(all(value >= 1 for value in values), name, values, "must be at least 1 each")
            setattr(self, name, sorted(set(values)))
        require(self.repeats >= 1, "repeats", self.repeats, "must be at least 1")
        require(
            self.layers is None or self.layers >= 2, "layers", self.layers, "must be at least 2: two depths are built"
        )
        require(self.out.endswith(".json"), "out", self.out, "must be a .json file; the Markdown goes beside it")


def add_options(parser: ArgumentParser) -> None:
    """Add them to a parser; defaults are those of `BenchSettings`."""
    plain = BenchSettings()
    add = parser.add_argument
    add("--target", help=f"{', '.join(TARGETS)}, a config.json, its folder, or a Hub id")
    add("--drafter", help="folder, config.json or Hub id (default: the shipped one, else the published shape)")
    add("--dtype", choices=DTYPES)
    add("--contexts", type=counts, metavar="N,…", help="tokens in the target's cache")
    add("--batches", type=counts, metavar="N,…", help="sequences at a time")
    add("--verify", type=counts, metavar="N,…", help="tokens of a verification; 1 and drafts + 1 are always timed")
    add("--tau", type=numbers, metavar="T,…", help="tokens per round to project the speedup for")
    add(
        "--layers", type=int, metavar="N", help="target layers to build; a deeper target is extrapolated from N/2 and N"
    )
    add("--repeats", type=int, metavar="N", help="timed runs of each point")
    add("--out", metavar="FILE.json", help="results; the Markdown goes beside them")
    parser.set_defaults(**{f.name: getattr(plain, f.name) for f in fields(BenchSettings)})


def single_bench(about: str | None, *, context: str, repeats: int, out: str) -> ArgumentParser:
    """A parser with what the benches of one context share; `context` is the help of that, `repeats` and `out` are defaults."""
    parser = ArgumentParser(description=about, formatter_class=ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--target", default="qwen3-8b", help=f"{', '.join(TARGETS)}, a config.json or its folder")
    add("--drafter", help="folder, config.json or Hub id")
    add("--dtype", default=BenchSettings().dtype, choices=DTYPES)
    add("--context", type=int, default=1024, help=context)
    add("--repeats", type=int, default=repeats)
    add("--out", default=out)
    return parser


def settings(args: Namespace) -> BenchSettings:
    """What they ask for. Raises `ValueError`: a value out of range, or an empty list."""
    return build(BenchSettings, {f.name: getattr(args, f.name) for f in fields(BenchSettings)}, "")


def counts(text: str) -> list[int]:
    """Whole numbers out of "1,4"; none out of an empty text, which the settings refuse by name."""
    return [int(part) for part in text.split(",") if part.strip()]


def numbers(text: str) -> list[float]:
    """Numbers out of "2,3.5"; none out of an empty text."""
    return [float(part) for part in text.split(",") if part.strip()]
