"""The modules for Hugging Face `evaluate`: by path, batch by batch, from a Space, and equal to the harness's own figures."""

import math
import subprocess
import sys
from pathlib import Path

import evaluate
import pytest
import yaml
from domino.evaluation import metrics
from localhub import LocalHub

MODULES = Path(metrics.__file__).parent / "modules"
NAMES = ("acceptance_length", "speedup", "losslessness")


def load(name):
    return evaluate.load(str(MODULES / name))


def test_acceptance_length_is_the_harness_s():
    tau, samples = load("acceptance_length"), [[1, 1, 1, 5], [5], [2, 3]]
    for sample in samples:
        tau.add_batch(predictions=[sample])
    found = tau.compute()
    assert found["acceptance_length"] == metrics.tau_per_step(samples)
    assert found["acceptance_length_per_sample"] == metrics.tau_per_sample(samples)
    assert found["rounds"] == 7
    assert load("acceptance_length").compute(predictions=[[]])["acceptance_length"] == 0.0
    with pytest.raises(ValueError, match="pass accepted drafts \\+ 1"):
        load("acceptance_length").compute(predictions=[[0, 2]])


def test_speedup_is_the_harness_s():
    columns = {"tokens": [10, 30], "seconds": [1.0, 2.0], "baseline_tokens": [10, 20], "baseline_seconds": [2.0, 4.0]}
    found = load("speedup").compute(**columns)
    plain = columns["baseline_tokens"], columns["baseline_seconds"]
    assert found["speedup"] == metrics.speedup(*plain, columns["tokens"], columns["seconds"])
    assert found["median_speedup"] == metrics.speedup_per_sample(*plain, columns["tokens"], columns["seconds"])
    with pytest.raises(ValueError, match="Seconds must be positive"):
        load("speedup").compute(**{**columns, "seconds": [1.0, 0.0]})
    with pytest.raises(ValueError, match="not all be 0"):
        load("speedup").compute(**{**columns, "tokens": [0, 0]})


def test_losslessness_finds_the_first_difference():
    found = load("losslessness").compute(
        predictions=[[5, 6, 7], [5, 6], [5], [4, 6]], references=[[5, 6, 7], [5, 9], [5, 6], [5, 6]]
    )
    assert found == {"lossless_rate": 0.25, "first_differences": [-1, 1, 1, 0]}
    assert found["lossless_rate"] == metrics.lossless_rate([True, False, False, False])
    assert math.isnan(load("losslessness").compute(predictions=[], references=[])["lossless_rate"])


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card_whose_example_is_true(name):
    text = (MODULES / name / "README.md").read_text()
    card = yaml.safe_load(text.split("---")[1])
    assert {"evaluate", "metric"} <= set(card["tags"])
    code = text.split("```python\n")[1].split("```")[0]
    call, said = code.replace(f'"org/{name}"', repr(str(MODULES / name))).rsplit("# ", 1)
    *setup, last = [line for line in call.splitlines() if line]
    scope: dict = {}
    exec("\n".join(setup), scope)
    assert eval(last.split("  #")[0], scope) == eval(said)


SPACE = """
import sys
import evaluate
from huggingface_hub import HfApi
for name in ("acceptance_length", "losslessness"):
    HfApi().create_repo(f"tester/{name}", repo_type="space", space_sdk="static")
    HfApi().upload_folder(repo_id=f"tester/{name}", repo_type="space", folder_path=f"{sys.argv[1]}/{name}")
print(evaluate.load("tester/acceptance_length").compute(predictions=[[1, 3]])["acceptance_length"])
print(evaluate.load("tester/losslessness").compute(predictions=[[1]], references=[[1]])["lossless_rate"])
"""


@pytest.mark.hub
def test_from_a_space(tmp_path):
    """In a process of its own, since the Hub's address is read at import."""
    with LocalHub() as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": "hf_test", "HF_HOME": str(tmp_path), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", SPACE, MODULES],
            capture_output=True,
            text=True,
            env={**environment, "HF_HUB_DISABLE_XET": "1"},
        )
    assert done.stdout.split() == ["2.0", "1.0"], done.stderr
