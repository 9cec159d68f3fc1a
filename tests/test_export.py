"""Export: the folder loads where the package is not installed, stays loadable when saved again, and is validated strictly."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from domino.hub.export import export
from domino.hub.validate import validate
from safetensors.torch import load_file, save_file
from tiny import make_draft, make_target
from transformers.dynamic_module_utils import get_relative_import_files

ROOT = Path(__file__).resolve().parent.parent
FACTS = """
base_model: org/tiny
license: apache-2.0
language: [en]
results: "| task | τ |\\n|---|--:|\\n| none | 1.0 |"
trained_for: "Nothing: random weights."
"""

# Runs without the package: it is blocked, so everything must come from the folder.
ALONE = """
import sys
sys.modules["domino"] = None
import torch
torch.set_num_threads(1)
from transformers import AutoModel, AutoModelForCausalLM
draft = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, revision=sys.argv[4] if len(sys.argv) > 4 else "main")
target = AutoModelForCausalLM.from_pretrained(sys.argv[2])
ids = torch.tensor([[18, 20, 36, 18, 45, 14]])
plain = target.generate(ids, max_new_tokens=16, do_sample=False)
ours = target.generate(ids, max_new_tokens=16, do_sample=False, assistant_model=draft)
assert torch.equal(plain, ours) and draft.statistics.rounds > 0
hub = target.generate(
    ids, max_new_tokens=16, do_sample=False, assistant_model=draft, custom_generate=sys.argv[1], trust_remote_code=True
)
assert torch.equal(plain, hub)
draft.save_pretrained(sys.argv[3])
again = AutoModel.from_pretrained(sys.argv[3], trust_remote_code=True)
assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values()))
print("module", type(draft).__module__)
"""


def run_alone(*args) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *map(str, args)], capture_output=True, text=True, cwd=Path(args[2]).parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def repository(tmp_path):
    """An exported tiny drafter, its tiny target, and the card's facts."""
    (tmp_path / "card.yaml").write_text(FACTS)
    make_draft().save_pretrained(tmp_path / "draft")
    make_target().float().save_pretrained(tmp_path / "target")
    return export(tmp_path / "draft", tmp_path / "repo", tmp_path / "card.yaml", "org/domino-tiny")


DOCTOR = ("doctor/examine.py", "doctor/report.py", "doctor/timing.py", "doctor/versions.py")
CARRIED = (
    "acceleration",
    "devices",
    "doctor",
    "drafting",
    "verification",
    "generation",
    "kernels",
    "custom_generate",
)


def test_manifest_lists_every_nested_file():
    listed = {Path(f).relative_to(ROOT) for f in get_relative_import_files(str(ROOT / "modeling_domino.py"))}
    nested = {p.relative_to(ROOT) for d in CARRIED for p in (ROOT / d).glob("*.py")}
    tools = {Path("kernels/aot.py"), *map(Path, DOCTOR)}  # for developers, and the command's own
    wanted = {Path("configuration_domino.py")} | {p for p in nested if p.name != "__init__.py"} - tools
    assert listed == wanted


def test_exported_folder(repository):
    assert validate(repository) == []
    config = json.loads((repository / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("domino", ["DFlashDraftModel"])
    card = (repository / "README.md").read_text()
    assert card.startswith("---\n")
    assert "base_model: org/tiny" in card
    assert "license: apache-2.0" in card
    names = {str(p.relative_to(repository)) for p in repository.rglob("*") if p.is_file()}
    assert {"drafting/tree.py", "kernels/rollout.py", "custom_generate/generate.py"} <= names
    assert "rollout.py" not in names  # transformers would have put it flat


def test_loads_without_the_package(repository, tmp_path):
    assert "transformers_modules" in run_alone(repository, tmp_path / "target", tmp_path / "again")
    assert validate(tmp_path / "again") == []
    assert (tmp_path / "again" / "custom_generate" / "generate.py").is_file()


# The check of a device starts another process, in which nothing was loaded yet.
CHECKED = """
import os, sys
sys.modules["domino"] = None
import torch
from transformers import AutoModel
draft = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)
package = type(draft).__module__.rpartition(".")[0]
seam = sys.modules[package + ".kernels.seam"]
assert seam.CASES == package + ".doctor.kernel_cases:CASES"
os.environ["PACKAGE"], seam.CASES, seam.able = package, "few:CASES", lambda device: True
print(seam.uses_triton(torch.device("cpu")), sys.modules[package + ".devices.verdict"]._entries())
"""
FEW = """
import os, sys
from importlib import import_module
sys.modules["domino"] = None
every = import_module(os.environ["PACKAGE"] + ".doctor.kernel_cases").CASES
CASES = {name: every[name] for name in ("pool", "sample")}
def tiny(device):
    assert import_module(os.environ["PACKAGE"] + ".doctor.graph_cases").tiny_pair(device, None)
CASES["a tiny pair"] = tiny
"""


def test_a_device_is_checked_without_the_package(repository, tmp_path):
    pytest.importorskip("triton")
    (tmp_path / "few.py").write_text(FEW)
    own = {"HF_HOME": str(tmp_path / "home"), "TRITON_INTERPRET": "1", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", CHECKED, str(repository)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **own},
    )
    assert done.returncode == 0, done.stderr
    assert "passed on cpu" in done.stderr
    assert done.stdout.startswith("True")
    assert all(f"'{case}': 'right'" in done.stdout for case in ("pool", "sample", "a tiny pair"))


def test_refuses_a_used_folder(repository, tmp_path):
    with pytest.raises(ValueError, match="is not empty"):
        export(tmp_path / "draft", repository, tmp_path / "card.yaml", "org/domino-tiny")


def edit_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def edit_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda f: edit_config(f, architectures=["DominoDraftModel"]), "architectures must be ['DFlashDraftModel']"),
        (lambda f: edit_config(f, pure_draft_prefix_len=0), "SGLang needs pure_draft_prefix_len 1"),
        (lambda f: edit_config(f, shift_label=1), "shift_label"),
        (lambda f: edit_config(f, mask_token_id=48), "mask_token_id"),
        (lambda f: edit_config(f, auto_map={}), "auto_map must be"),
        (
            lambda f: edit_tensors(f, lambda t: t.pop("layers.1.mlp.up_proj.weight")),
            "tensor absent: layers.1.mlp.up_proj",
        ),
        (lambda f: edit_tensors(f, lambda t: t.update(x=torch.zeros(1))), "tensor unknown: x"),
        (
            lambda f: edit_tensors(f, lambda t: t.update({"norm.weight": torch.ones(32)})),
            "norm.weight: dtype must be BF16",
        ),
        (
            lambda f: edit_tensors(f, lambda t: t.update({"norm.weight": torch.ones(31).bfloat16()})),
            "norm.weight: shape must be [32], got [31]",
        ),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x10" * 40), "damaged or truncated"),
        (lambda f: (f / "model.safetensors").unlink(), "no *.safetensors file"),
        (lambda f: shutil.rmtree(f / "kernels"), "code file absent"),
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: edit_config(f, dflash_config={"projector_type": "domino", "block_size": 9}), "they must agree"),
        (lambda f: edit_config(f, dflash_config=[]), "no `dflash_config` dict"),
        (lambda f: edit_config(f, hidden_act="nope"), "config.json"),
        (lambda f: edit_config(f, dtype="float32"), "dtype must be 'bfloat16'"),
        (lambda f: edit_tensors(f, lambda t: t["fc.weight"].fill_(float("nan"))), "fc.weight: holds values"),
        (lambda f: shutil.copy(f / "model.safetensors", f / "more.safetensors"), "tensor in two files: fc.weight"),
    ],
)
def test_validator_finds(repository, spoil, finding):
    spoil(repository)
    assert any(finding in problem for problem in validate(repository)), validate(repository)


def test_another_drafter_needs_a_card_of_its_own(repository, tmp_path):
    """The embedded drafter's card would say wrong things of it."""
    command = [sys.executable, "-m", "domino", "export", "new", "--drafter", str(tmp_path / "draft")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert "--card is missing: a YAML file with base_model, license" in done.stderr
    assert not (tmp_path / "new").exists()
    done = subprocess.run([*command, "--card", "card.yaml"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
