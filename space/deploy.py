"""Upload everything a Hub Space needs: the page, the package and the pair of models.

app.py  README.md  requirements.txt    what the Hub starts (this folder's)
domino/                                the package's code, its packaged prompts and docs/results.md
models/target  models/drafter          the pair; absent where both are Hub ids, which the Space fetches
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from huggingface_hub import HfApi

from ..embedded.smollm2 import DRAFTER, locate
from ..evaluation.settings import ModelSettings

ROOT = Path(__file__).resolve().parent.parent
START = ("app.py", "README.md", "requirements.txt")
MODELS, PAIR = "models", "pair.json"
CODE = (
    "acceleration",
    "devices",
    "doctor",
    "drafting",
    "verification",
    "generation",
    "kernels",
    "evaluation",
    "embedded",
    "space",
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", DRAFTER.name, "configs", "modules", "measurements")


def stage(folder: Path, target: str | None, drafter: str | None) -> Path:
    """Write the Space's tree.

    Args:
        folder: new or empty. target, drafter: folders, which are copied in, or Hub ids; None or smollm2: the embedded pair.

    Returns:
        `folder`.
    """
    for name in START:
        shutil.copy(ROOT / "space" / name, folder / name)
    package = folder / "domino"
    for name in CODE:
        shutil.copytree(ROOT / name, package / name, ignore=LEFT_OUT)
    for file in [*ROOT.glob("*.py"), ROOT / "docs" / "results.md"]:
        (package / file.relative_to(ROOT)).parent.mkdir(exist_ok=True)
        shutil.copy(file, package / file.relative_to(ROOT))
    found, found_drafter = locate(target, drafter)
    assert found_drafter is not None  # `ModelSettings.require_drafter` comes before
    pair = {
        "name": ModelSettings(target, drafter).name,
        "target": _model(folder, "target", found),
        "drafter": _model(folder, "drafter", found_drafter),
    }
    (folder / MODELS).mkdir(exist_ok=True)
    (folder / MODELS / PAIR).write_text(json.dumps(pair, indent=2) + "\n", encoding="utf-8")
    return folder


def _model(folder: Path, part: str, name: str) -> str:
    """Copy a model's folder in; what is none is a Hub id and stays one."""
    if not Path(name).is_dir():
        return name
    shutil.copytree(name, folder / MODELS / part, ignore=shutil.ignore_patterns("__pycache__"))
    return f"{MODELS}/{part}"


def staged_pair(root: Path) -> ModelSettings | None:
    """The pair of a staged tree, with the paths of what lies in it; None where `root` is no such tree."""
    file = root / MODELS / PAIR
    if not file.is_file():
        return None
    pair = json.loads(file.read_text(encoding="utf-8"))
    for part in ("target", "drafter"):
        if (root / pair[part]).is_dir():
            pair[part] = str(root / pair[part])
    return ModelSettings(**pair)


def deploy(repo_id: str, target: str | None, drafter: str | None, private: bool, message: str) -> str:
    """Create the Space if need be and upload the tree; files of an earlier upload that are not in it go. Returns the commit's URL."""
    api = HfApi()
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), target, drafter)
        api.create_repo(repo_id, repo_type="space", space_sdk="gradio", private=private, exist_ok=True)
        return api.upload_folder(
            repo_id=repo_id, repo_type="space", folder_path=folder, commit_message=message, delete_patterns="*"
        ).commit_url
