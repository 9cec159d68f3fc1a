"""The training config: overrides, typos with the nearest key, kinds, what does not go together."""

import re
from pathlib import Path

import pytest
import yaml
from domino.training.ablate import read_rows
from domino.training.config import load, parse, to_dict

ROOT = Path(__file__).resolve().parent.parent
LEAST = {"target": "t", "data": "d", "output_dir": "o"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "training" / "configs").glob("smollm2-135m*.yaml")), ids=lambda p: p.stem
)
def test_committed_configs_are_valid(path):
    if "prompts" in path.stem:
        pytest.skip("a mix of prompts")
    config = load(path)
    assert config.trainer["max_steps"] > 100
    assert parse(to_dict(config)) == config


def test_the_guides_config_is_valid():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "training.md").read_text(), re.S)
    assert parse(yaml.safe_load(block)).trainer["learning_rate"] == 0.0006


def test_the_ablations_are_valid(tmp_path):
    rows = read_rows(ROOT / "training" / "configs" / "ablations.yaml", tmp_path, ["data=elsewhere"])
    assert len({row.folder for row in rows}) == len(rows) == 8
    assert {row.config.objective.weights for row in rows} == {"decay", "auf", "dpace"}
    assert all(row.config.data == "elsewhere" and row.config.trainer["max_steps"] == 250 for row in rows)


def test_overrides(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(LEAST))
    config = load(
        path, ["objective.weights=auf", "trainer.learning_rate=1e-3", "data=elsewhere", "drafter.block_size=8"]
    )
    assert (config.objective.weights, config.data, config.drafter.block_size) == ("auf", "elsewhere", 8)
    assert config.trainer["learning_rate"] == 0.001  # YAML 1.1 reads 1e-3 as a string
    for wrong, message in (
        ("objective.weights", "--set takes key=value"),
        (".gamma=1", "--set takes key=value"),
        ("objective.gamma.x=1", "Unknown key objective.gamma.x"),
        ("objective.gamma=[", "the value is not valid YAML"),
    ):
        with pytest.raises(ValueError, match=message):
            load(path, [wrong])
    path.write_text(yaml.safe_dump({**LEAST, "objective": [1]}))
    with pytest.raises(ValueError, match="objective must be a mapping"):
        load(path, ["objective.gamma=2"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objetive": {}}, r"Unknown key objetive: did you mean objective\?"),
        ({"objective": {"wieghts": "auf"}}, r"Unknown key objective.wieghts: did you mean objective.weights\?"),
        ({"trainer": {"learning_rat": 1}}, r"Unknown key trainer.learning_rat: did you mean trainer.learning_rate\?"),
        ({"drafter": {"qqqqq": 1}}, "Unknown key drafter.qqqqq: allowed are block_size, emb_dim"),
        ({"trainer": {"output_dir": "x"}}, "trainer.output_dir cannot be set here"),
        ({"objective": {"weights": "vat"}}, "objective.weights must be one of 'decay', 'auf', 'dpace', got 'vat'"),
        ({"objective": {"num_anchors": "many"}}, "objective.num_anchors must be int, got 'many'"),
        ({"objective": {"num_anchors": True}}, "objective.num_anchors must be int, got True"),
        ({"objective": {"num_anchors": 0}}, "objective.num_anchors must be positive, got 0"),
        ({"objective": {"gamma": -1.0}}, "objective.gamma must be positive"),
        ({"objective": {"soft_weight": 1.5}}, "objective.soft_weight must be within 0 … 1"),
        ({"objective": {"sampled_tokens": 5}}, "needs objective.vocabulary"),
        ({"objective": {"head": False, "prefix": "self"}}, "objective.prefix must be 'teacher' with"),
        ({"evaluation": {"every": 0}}, "evaluation.every must be positive"),
        ({"objective": [1]}, "objective must be a mapping"),
        ({"trainer": [1]}, "trainer must be a mapping"),
        ({"objective": {1: 2}}, "Unknown key objective.1: allowed are"),
        ({"trainer": {"max_steps": "many"}}, "trainer.max_steps must be int, got 'many'"),
        ({"trainer": {"eval_steps": "often"}}, "trainer.eval_steps must be float or null, got 'often'"),
        ({"drafter": {"mask_token_id": "last"}}, "drafter.mask_token_id must be 'auto' or an int, got 'last'"),
        ({"drafter": {"target_layer_ids": ["a"]}}, r"drafter.target_layer_ids must be list\[int\] or null, got \['a'\]"),
        ({"drafter": {"target_layer_ids": []}}, "drafter.target_layer_ids must name a layer"),
        ({"drafter": {"num_feature_layers": 0}}, "drafter.num_feature_layers must be positive"),
        ({"held_out_shards": 0}, "held_out_shards must be positive"),
        ({"data": None}, "lacks data"),
        ({"target_dtype": "bf16"}, "target_dtype must be one of"),
    ],
)  # fmt: skip
def test_mistakes_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        parse({**LEAST, **changes})


def test_an_empty_section_is_none_at_all():
    assert parse({**LEAST, "trainer": None, "objective": None}) == parse(LEAST)


def test_broken_yaml_names_the_line(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("target: a\ndata: [1, 2\noutput_dir: o\n")
    with pytest.raises(ValueError, match="not valid YAML.*line 3"):
        load(path)
    path.write_text("- 1\n")
    with pytest.raises(ValueError, match="must hold a mapping"):
        load(path)
