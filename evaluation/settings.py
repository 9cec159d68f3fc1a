"""What `domino eval` runs: its defaults, from YAML or flags."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..embedded.smollm2 import embedded
from ..settings import Dtype, build, mapping, require
from .methods import METHODS, PLAIN
from .tasks import nearest

EMBEDDED = "smollm2-135m-instruct"  # the embedded target's name in results


@dataclass
class ModelSettings:
    """A target and what drafts for it: folders or Hub ids. No target, or "smollm2", is the embedded pair.

    Attributes:
        assistant: an ordinary smaller model of the same tokenizer, for the method of that name. name: in the results;
            by default the end of the target's.
    """

    target: str | None = None
    drafter: str | None = None
    assistant: str | None = None
    name: str | None = None

    def __post_init__(self):
        if self.target is None and self.drafter is not None:
            raise ValueError("A drafter serves the one target it was trained for: name the target, too.")
        self.name = self.name or (EMBEDDED if embedded(self.target) else Path(str(self.target)).resolve().name)

    @property
    def has_drafter(self) -> bool:
        """Whether one is named, or comes with the target."""
        return self.drafter is not None or embedded(self.target)

    def require_drafter(self) -> None:
        """Raises `ValueError`: a target without one."""
        if not self.has_drafter:
            raise ValueError(f"{self.target} needs a drafter that was trained for it: name one with --drafter.")


@dataclass
class EvalSettings:
    """One evaluation.

    Attributes:
        out: folder of the results; goes on where it stopped. models: target and drafters, each measured by itself.
        tasks: "gsm8k=30,humaneval=20", "all=20", or in YAML a mapping {gsm8k: 30}; without a number all questions.
        methods: see `methods.METHODS`; plain comes first, asked for or not. temperatures: 0 is greedy.
        repeats: runs of each method on each question. shuffle: seed of the draw of questions; None takes the first.
        data: folder with <task>.jsonl files that go before the packaged ones. execute_code: run the programs a target writes,
            to score HumanEval and MBPP.
    """

    out: str
    models: list = field(default_factory=lambda: [{}])
    tasks: str | dict = "gsm8k=30,humaneval=20"
    methods: list[str] = field(default_factory=lambda: [PLAIN, "domino"])
    temperatures: list[float] = field(default_factory=lambda: [0.0])
    max_new_tokens: int = 128
    repeats: int = 1
    seed: int = 0
    shuffle: int | None = None
    data: str | None = None
    dtype: Dtype = "bfloat16"
    execute_code: bool = False

    def __post_init__(self):
        for name in ("max_new_tokens", "repeats"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be positive")
        require(bool(self.models), "models", self.models, "must name at least one model")
        require(bool(self.temperatures), "temperatures", self.temperatures, "must name at least one temperature")
        numbers = all(not isinstance(t, bool) and math.isfinite(t) and t >= 0 for t in self.temperatures)
        require(numbers, "temperatures", self.temperatures, "must be numbers, 0 (greedy) or more")
        require(bool(self.out), "out", self.out, "must name a folder for the results (--out)")
        require(self.shuffle is None or self.shuffle >= 0, "shuffle", self.shuffle, "must not be negative")
        self.temperatures = sorted({float(t) for t in self.temperatures})
        for name in self.methods:
            if name not in METHODS:
                raise ValueError(nearest(name, METHODS, "method"))
        self.methods = [PLAIN, *dict.fromkeys(name for name in self.methods if name != PLAIN)]
        self.models = [
            m if isinstance(m, ModelSettings) else build(ModelSettings, m, f"models[{place}].")
            for place, m in enumerate(self.models)
        ]
        names = [model.name for model in self.models]
        require(len(set(names)) == len(names), "models", names, "must have different names")
        for model in self.models:
            self._check_needs(model)

    def _check_needs(self, model: ModelSettings) -> None:
        has = {
            None: True,
            "draft": model.has_drafter,
            "assistant": bool(model.assistant),
        }
        for name in self.methods:
            if not has[need := METHODS[name].needs]:
                option = "a drafter" if need == "draft" else "an assistant"
                raise ValueError(f"Method {name!r} needs {option} for {model.name}: name one, or leave the method out.")

    def asked(self) -> str:
        """The tasks as `tasks.parse` reads them."""
        if isinstance(self.tasks, str):
            return self.tasks
        return ",".join(name if n is None else f"{name}={n}" for name, n in self.tasks.items())

    def fixed(self) -> dict[str, Any]:
        """What one folder of results has in common; models, tasks and temperatures may be added later."""
        free = {"out", "models", "tasks", "temperatures", "methods"}
        return {name: value for name, value in asdict(self).items() if name not in free}

    def identities(self) -> dict[str, dict[str, Any]]:
        """What each model's name stands for."""
        return {model.name: {k: v for k, v in asdict(model).items() if k != "name"} for model in self.models}


def load(config: Path | None, flags: dict[str, Any]) -> EvalSettings:
    """Settings of a YAML file (or none), over which the flags that were given go.

    Raises:
        `ValueError`: not YAML, unknown keys or values (the nearest key is named).
    """
    values: dict[str, Any] = {}
    if config is not None:
        try:
            values = mapping(yaml.safe_load(config.read_text(encoding="utf-8")), str(config))
        except yaml.YAMLError as error:
            raise ValueError(f"{config} is not valid YAML: {error}") from error
    values = {**values, **{name: value for name, value in flags.items() if value is not None}}
    require("out" in values, "out", None, "must name a folder for the results (--out)")
    return build(EvalSettings, values, "")
