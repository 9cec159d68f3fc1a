"""The schema of `domino train <config.yaml>`. Every default stands here and nowhere else."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args

import yaml
from transformers import TrainingArguments

from ..settings import build, known, mapping, require, typed

OURS = {"output_dir": "the config's own output_dir", "remove_unused_columns": "always false here"}


@dataclass
class DrafterSettings:
    """Shape of the drafter and where its weights come from; None takes the target's own value.

    Attributes:
        start: "target" copies the target's last layers, "random" starts from noise, a folder or Hub id continues a drafter.
        num_feature_layers: target layers read, evenly spaced by the published formula; `target_layer_ids` names them instead.
        mask_token_id: an id, or "auto" for a reserved one. The other fields are those of `DominoConfig`.
    """

    start: str = "target"
    num_hidden_layers: int = 5
    intermediate_size: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    block_size: int = 16
    mask_token_id: int | str = "auto"
    shift_label: bool = True
    pure_draft_prefix_len: int = 1
    gru_hidden_dim: int = 1024
    emb_dim: int = 256
    num_feature_layers: int = 5
    target_layer_ids: list[int] | None = None

    def __post_init__(self):  # only what DominoConfig, which sees every other field, cannot name
        layers, mask = self.num_feature_layers, self.mask_token_id
        require(layers > 0, "drafter.num_feature_layers", layers, "must be positive")
        require(self.target_layer_ids != [], "drafter.target_layer_ids", [], "must name a layer, or be null")
        require(mask == "auto" or isinstance(mask, int), "drafter.mask_token_id", mask, "must be 'auto' or an int")


@dataclass
class ObjectiveSettings:
    """The objective (reference: `training/objective.py`).

    Attributes:
        num_anchors: blocks per sequence. max_length: tokens of a sequence. min_answer: shortest answer that is used, tokens.
        gamma: γ of the weights exp(-(i - 1) / γ). weights: "decay", "auf" or "dpace".
        lambda_base, lambda_decay_ratio: λ falls from the first to 0 over this share of the steps; 0 is no curriculum.
        head: False trains the backbone alone (DFlash). prefix: the GRU reads true tokens ("teacher") or its own ("self").
        labels: "hard", or "kl" / "l1" to the target's distribution, of which `soft_weight` counts and the rest stays hard.
        vocabulary: frequent tokens kept exactly; None is the whole vocabulary. sampled_tokens: others drawn per step.
        chunk_blocks: blocks whose logits exist at a time. attention: of the draft layers.
        features: "cached" reads them from the shards, "online" asks the target, "auto" takes what the shards have.
    """

    num_anchors: int = 256
    max_length: int = 3072
    min_answer: int = 2
    gamma: float = 7.0
    weights: Literal["decay", "auf", "dpace"] = "decay"
    lambda_base: float = 1.0
    lambda_decay_ratio: float = 1.0
    head: bool = True
    prefix: Literal["teacher", "self"] = "teacher"
    labels: Literal["hard", "kl", "l1"] = "hard"
    soft_weight: float = 1.0
    vocabulary: int | None = None
    sampled_tokens: int = 0
    chunk_blocks: int = 128
    attention: Literal["sdpa", "flex", "eager"] = "sdpa"
    features: Literal["auto", "online", "cached"] = "auto"

    def __post_init__(self):
        for name in ("num_anchors", "max_length", "min_answer", "gamma", "lambda_decay_ratio", "chunk_blocks"):
            require(getattr(self, name) > 0, f"objective.{name}", getattr(self, name), "must be positive")
        for name in ("lambda_base", "soft_weight"):
            require(0 <= getattr(self, name) <= 1, f"objective.{name}", getattr(self, name), "must be within 0 … 1")
        require(self.sampled_tokens >= 0, "objective.sampled_tokens", self.sampled_tokens, "must not be negative")
        require(
            self.vocabulary is not None or not self.sampled_tokens,
            "objective.sampled_tokens",
            self.sampled_tokens,
            "needs objective.vocabulary: the whole vocabulary leaves nothing to sample",
        )
        require(
            self.vocabulary is None or self.vocabulary > 0, "objective.vocabulary", self.vocabulary, "must be positive"
        )
        require(
            self.head or self.prefix == "teacher",
            "objective.prefix",
            self.prefix,
            "must be 'teacher' with objective.head: false, since there is no GRU to read it",
        )


@dataclass
class EvaluationSettings:
    """The real τ during training.

    Attributes:
        prompts: a packaged task or a JSONL file of prompts; None measures nothing. count: prompts of it.
        every: steps between two measurements. max_new_tokens: per answer.
    """

    prompts: str | None = None
    count: int = 8
    every: int = 500
    max_new_tokens: int = 128

    def __post_init__(self):
        for name in ("count", "every", "max_new_tokens"):
            require(getattr(self, name) > 0, f"evaluation.{name}", getattr(self, name), "must be positive")


@dataclass
class TrainConfig:
    """A whole run.

    Attributes:
        target: Hub id, folder, or "smollm2". data: folder of shards. output_dir: checkpoints and the drafter.
        held_out_shards: last shards of the data, for evaluation. trainer: `transformers.TrainingArguments`.
    """

    target: str
    data: str
    output_dir: str
    target_dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    held_out_shards: int = 2
    drafter: DrafterSettings = field(default_factory=DrafterSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        require(self.held_out_shards > 0, "held_out_shards", self.held_out_shards, "must be positive")


SECTIONS = {"drafter": DrafterSettings, "objective": ObjectiveSettings, "evaluation": EvaluationSettings}


def load(path: Path, overrides: list[str] | None = None) -> TrainConfig:
    """Read a config; `overrides` are "section.key=value" or "key=value" with YAML values.

    Raises:
        `ValueError`: broken YAML, an unknown key (the nearest one is named), a value of the wrong kind.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: " + " ".join(str(error).split())) from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a mapping of settings, got {type(values).__name__}.")
    for override in overrides or []:
        _override(values, override)
    return parse(values)


def parse(values: dict[str, Any]) -> TrainConfig:
    """A config out of plain values; see `load`."""
    parts = dict(values)
    for name, section in SECTIONS.items():
        if name in parts:
            parts[name] = build(section, parts[name] or {}, f"{name}.")
    parts["trainer"] = _trainer(parts.get("trainer") or {})
    missing = [name for name in ("target", "data", "output_dir") if not parts.get(name)]
    if missing:
        raise ValueError(f"The config lacks {', '.join(missing)}.")
    return build(TrainConfig, parts, "")


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain values that `parse` reads back."""
    return asdict(config)


def _override(values: dict[str, Any], override: str) -> None:
    name, equals, text = override.partition("=")
    section, dot, key = name.partition(".")
    if not equals or not section or (dot and not key):
        raise ValueError(f"--set takes key=value or section.key=value, got {override!r}.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"--set {override}: the value is not valid YAML.") from error
    if not dot:
        values[name] = value
        return
    known(section, {*SECTIONS, "trainer"}, "")
    values[section] = {**mapping(values.get(section) or {}, section), key: value}


def _trainer(values: Any) -> dict[str, Any]:
    """Arguments of transformers; numbers and switches are checked here, the rest by transformers itself."""
    kinds = {f.name: f.type for f in fields(TrainingArguments) if f.init}
    checked = {}
    for key, value in mapping(values, "trainer").items():
        if key in OURS:
            raise ValueError(f"trainer.{key} cannot be set here: it is {OURS[key]}.")
        known(key, set(kinds), "trainer.")
        if key.endswith("_strategy") and value is False:
            value = "no"  # which YAML reads as false
        plain = {k for k in get_args(kinds[key]) or (kinds[key],) if k is not NoneType} <= {bool, int, float}
        checked[key] = typed(value, kinds[key], f"trainer.{key}") if plain else value
    return checked
