"""Configuration: typed, cross-checked, and able to read the published layout."""

import json
import re

import pytest
from domino import DominoConfig
from domino.configuration_domino import evenly_spaced_layers, flatten_published
from domino.hub.validate import validate

PUBLISHED = {
    "architectures": ["DFlashDraftModel"],
    "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
    "model_type": "qwen3",
    "block_size": 16,
    "emb_dim": 256,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "num_hidden_layers": 5,
    "num_target_layers": 36,
    "rope_theta": 1000000,
    "vocab_size": 151936,
    "dflash_config": {
        "projector_type": "domino",
        "emb_dim": 256,
        "gru_hidden_dim": 1024,
        "pure_draft_prefix_len": 1,
        "shift_label": True,
        "target_layer_ids": [1, 9, 17, 25, 33],
        "mask_token_id": 151669,
    },
}


def layers(ids):
    """The published config's part with other feature layers."""
    return {"dflash_config": {**PUBLISHED["dflash_config"], "target_layer_ids": ids}}


def test_published_layout(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = DominoConfig.from_pretrained(tmp_path)
    assert (config.model_type, config.shift_label, config.gru_hidden_dim) == ("domino", True, 1024)
    assert config.target_layer_ids == [1, 9, 17, 25, 33]
    assert config.rope_parameters["rope_theta"] == 1000000
    config.save_pretrained(tmp_path / "ours")
    again = DominoConfig.from_pretrained(tmp_path / "ours")
    assert again.to_dict() == config.to_dict()


def test_fields_the_published_code_may_leave_out():
    nested = {k: v for k, v in PUBLISHED["dflash_config"].items() if k not in ("shift_label", "pure_draft_prefix_len")}
    flat = flatten_published({**PUBLISHED, "dflash_config": nested})
    assert (flat["shift_label"], flat["pure_draft_prefix_len"]) == (False, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"emb_dim": 128}, "`emb_dim` is 128 at top level but 256"),
        ({"dflash_config": {"projector_type": "causal_v5"}}, "must be 'domino', got 'causal_v5'"),
        ({"dflash_config": None}, "no `dflash_config` dict"),
        (layers([]), r"DominoConfig.target_layer_ids must be a non-empty list of the target's layer numbers, got \[\]"),
        (layers(None), "target_layer_ids must be a non-empty list .* got None"),
        (layers(["1"]), "target_layer_ids must be a non-empty list"),
    ],
)
def test_contradictory_published_config(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        flatten_published({**PUBLISHED, **change})
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED, **change}))
    (problem,) = validate(tmp_path)
    assert problem.startswith("config.json: ")
    assert re.search(message, problem)


def test_a_published_config_without_the_targets_depth():
    """It reads the target's layers up to the last feature layer; without such layers the field is named."""
    bare = {name: value for name, value in PUBLISHED.items() if name != "num_target_layers"}
    assert flatten_published(bare)["num_target_layers"] == 34
    with pytest.raises(ValueError, match="target_layer_ids must be a non-empty list"):
        flatten_published({**bare, "dflash_config": {**bare["dflash_config"], "target_layer_ids": []}})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 1),
        ("mask_token_id", 151936),
        ("target_layer_ids", [1, 36]),
        ("target_layer_ids", []),
        ("pure_draft_prefix_len", 17),
        ("num_key_value_heads", 5),
        ("gru_hidden_dim", 0),
        ("intermediate_size", 0),
        ("num_key_value_heads", 0),
        ("layer_types", ["sliding_attention"] * 5),
        ("projector_type", "dflash"),
        ("block_size", "16"),
        ("shift_label", "yes"),
    ],
)
def test_errors_name_the_field(field, value):
    with pytest.raises(Exception, match=field):
        DominoConfig(**{field: value})


def test_drafts_per_block():
    assert DominoConfig(block_size=16, shift_label=True).num_drafts == 16
    assert DominoConfig(block_size=16, shift_label=False).num_drafts == 15


def test_feature_layers():
    assert evenly_spaced_layers(36, 5) == [1, 9, 17, 25, 33]
    assert evenly_spaced_layers(64, 5) == [1, 16, 31, 46, 61]
    assert evenly_spaced_layers(36, 1) == [18]
