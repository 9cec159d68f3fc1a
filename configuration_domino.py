"""Configuration of a Domino drafter, and the reading of the published layout."""

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

# Widths and counts that shape the weights: at least 1 each.
SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "gru_hidden_dim",
    "emb_dim",
)


@strict
class DominoConfig(PreTrainedConfig):
    r"""
    Configuration of a [`DominoModel`]: a DFlash backbone plus Domino's causal head (arXiv 2605.29707).

    All fields are flat. The names of the head's fields are those of the published checkpoints, so that one config file
    serves transformers and SGLang. A published config (`model_type: qwen3` with a nested `dflash_config`) is read as it
    stands by [`~DominoConfig.from_pretrained`].

    Args:
        vocab_size (`int`): Vocabulary of the target; the drafter has no embedding and no LM head of its own.
        hidden_size (`int`): Width `D`, equal to the target's.
        intermediate_size (`int`): Width of the MLPs.
        num_hidden_layers (`int`): Draft layers.
        num_attention_heads (`int`): Query heads.
        num_key_value_heads (`int`, *optional*): Key/value heads, default `num_attention_heads`.
        head_dim (`int`, *optional*): Default `hidden_size // num_attention_heads`.
        block_size (`int`): Slots `B` of a block: the anchor and `B - 1` mask tokens.
        target_layer_ids (`list[int]`, *optional*): Target layers whose **output** is the context feature; 0-based.
            Default: `num_hidden_layers` ids evenly spaced from 1 to `num_target_layers - 3`.
        num_target_layers (`int`): Layers of the target.
        mask_token_id (`int`): Token id that fills the undrafted slots, a reserved id of the target's vocabulary.
        shift_label (`bool`): `True`: slot k predicts token a+k+1 (a = anchor), all `B` slots draft. `False`: slot k
            predicts token a+k (DFlash's fill-in layout), slots 1 … B-1 draft.
        pure_draft_prefix_len (`int`): Leading drafts taken from the base logits alone, without the correction.
        gru_hidden_dim (`int`): Width `G` of the causal encoder's state.
        emb_dim (`int`): Rank of the logit correction (the published name; it is not an embedding width).
    """

    model_type = "domino"
    keys_to_ignore_at_inference = ["past_key_values"]

    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 12288
    num_hidden_layers: int = 5
    num_attention_heads: int = 32
    num_key_value_heads: int | None = 8
    head_dim: int | None = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 40960
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_parameters: dict | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    layer_types: list[str] | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    block_size: int = 16
    num_target_layers: int = 36
    target_layer_ids: list[int] | None = None
    mask_token_id: int = 151669
    projector_type: str = "domino"
    shift_label: bool = True
    pure_draft_prefix_len: int = 1
    gru_hidden_dim: int = 1024
    emb_dim: int = 256

    def __post_init__(self, **kwargs):
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.layer_types is None:
            self.layer_types = ["full_attention"] * self.num_hidden_layers
        if self.target_layer_ids is None:
            self.target_layer_ids = evenly_spaced_layers(self.num_target_layers, self.num_hidden_layers)
        super().__post_init__(**kwargs)

    @property
    def num_drafts(self) -> int:
        """Tokens drafted per round: `B` slots draft with `shift_label`, `B - 1` without (slot 0 holds the anchor)."""
        return self.block_size if self.shift_label else self.block_size - 1

    @property
    def first_slot(self) -> int:
        """Slot that predicts the token right after the anchor."""
        return 0 if self.shift_label else 1

    def validate_domino_fields(self):
        """Cross-checks, run after every construction; each error names the field. Raises `ValueError`."""
        for name in (*SIZES, "num_target_layers"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        _require(self.block_size >= 2, "block_size", self.block_size, "must be at least 2 (the anchor and one mask)")
        _require(
            0 <= self.mask_token_id < self.vocab_size,
            "mask_token_id",
            self.mask_token_id,
            f"must be inside the vocabulary, 0 … {self.vocab_size - 1}",
        )
        _require(
            len(self.target_layer_ids) == len(set(self.target_layer_ids)) > 0
            and all(0 <= i < self.num_target_layers for i in self.target_layer_ids),
            "target_layer_ids",
            self.target_layer_ids,
            f"must be a non-empty list of different layers of the target, 0 … {self.num_target_layers - 1}",
        )
        _require(
            0 <= self.pure_draft_prefix_len <= self.num_drafts,
            "pure_draft_prefix_len",
            self.pure_draft_prefix_len,
            f"must be between 0 and the {self.num_drafts} drafts of a block",
        )
        _require(
            self.num_attention_heads % self.num_key_value_heads == 0,
            "num_key_value_heads",
            self.num_key_value_heads,
            f"must divide num_attention_heads = {self.num_attention_heads}",
        )
        _require(
            self.layer_types == ["full_attention"] * self.num_hidden_layers,
            "layer_types",
            self.layer_types,
            f"must be 'full_attention' for each of the {self.num_hidden_layers} draft layers",
        )
        _require(self.projector_type == "domino", "projector_type", self.projector_type, "must be 'domino'")

    @classmethod
    def get_config_dict(cls, pretrained_model_name_or_path, **kwargs):
        config_dict, kwargs = super().get_config_dict(pretrained_model_name_or_path, **kwargs)
        return flatten_published(config_dict), kwargs

    def to_dict(self) -> dict[str, Any]:
        # SGLang finds its draft class by this name; transformers goes by `auto_map` and `model_type`.
        return {**super().to_dict(), "architectures": ["DFlashDraftModel"]}


def _require(ok: bool, field: str, got, rule: str) -> None:
    if not ok:
        raise ValueError(f"DominoConfig.{field} {rule}, got {got!r}.")


def evenly_spaced_layers(num_target_layers: int, num_draft_layers: int) -> list[int]:
    """The published choice of feature layers: evenly spaced and rounded from 1 to `num_target_layers - 3`.

    Examples: 36 target and 5 draft layers give [1, 9, 17, 25, 33]; 30 and 5 give [1, 8, 14, 20, 27].
    """
    if num_draft_layers == 1:
        return [num_target_layers // 2]
    last = max(num_target_layers - 3, 1)
    return [round(1 + i * (last - 1) / (num_draft_layers - 1)) for i in range(num_draft_layers)]


# A published file must state these: the defaults of a new drafter would be silently wrong for it.
PUBLISHED_FIELDS = (*SIZES, "block_size", "target_layer_ids", "mask_token_id")


def flatten_published(config: dict[str, Any]) -> dict[str, Any]:
    """A config in the published layout as flat `DominoConfig` fields; a flat one is returned unchanged.

    Published files keep `model_type: qwen3` and put the drafting fields in `dflash_config`, some of them at top level
    too. A field that stands in both places must agree.

    Raises:
        `ValueError`: a field stated twice with different values, one that is missing, no feature layers, or a checkpoint of
            another projector type.
    """
    nested = config.get("dflash_config")
    if config.get("model_type") == DominoConfig.model_type and nested is None:
        return config
    if not isinstance(nested, dict):
        raise ValueError(
            f"Not a Domino config: model_type is {config.get('model_type')!r} and there is no `dflash_config` dict. "
            "Expected model_type 'domino' or the published layout with a nested `dflash_config`."
        )
    if nested.get("projector_type") != "domino":
        raise ValueError(
            f"dflash_config.projector_type must be 'domino', got {nested.get('projector_type')!r}: "
            "this checkpoint has no Domino head."
        )
    flat = {k: v for k, v in config.items() if k not in ("dflash_config", "model_type", "architectures", "auto_map")}
    for name, value in nested.items():
        if name in flat and flat[name] != value:
            raise ValueError(
                f"`{name}` is {flat[name]!r} at top level but {value!r} in `dflash_config`; they must agree."
            )
        flat[name] = value
    missing = [name for name in PUBLISHED_FIELDS if name not in flat]
    if missing:
        raise ValueError(f"The config states none of {missing}; a drafter cannot be read without them.")
    ids = flat["target_layer_ids"]
    _require(
        isinstance(ids, list) and len(ids) > 0 and all(type(i) is int for i in ids),
        "target_layer_ids",
        ids,
        "must be a non-empty list of the target's layer numbers",
    )
    flat.setdefault("num_target_layers", max(ids) + 1)
    # What the published code assumes when a file leaves these out; not the defaults of a new drafter.
    return {"pure_draft_prefix_len": 0, "shift_label": False, **flat, "model_type": DominoConfig.model_type}


__all__ = ["DominoConfig", "evenly_spaced_layers", "flatten_published"]
