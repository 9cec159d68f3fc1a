"""Write a drafter as a Hub repository: weights, config, the code that loads them, card and custom_generate."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import yaml
from huggingface_hub import HfApi

from ..modeling_domino import DominoModel
from .card import model_card
from .validate import validate

CARD_FACTS = ("base_model", "license", "language", "results", "trained_for")


def read_facts(path: Path) -> dict:
    """The card's facts from a YAML file. Raises `ValueError` that names what is missing."""
    facts = yaml.safe_load(path.read_text(encoding="utf-8"))
    missing = [name for name in CARD_FACTS if name not in facts]
    if missing:
        raise ValueError(f"{path}: missing {missing}; a card needs {list(CARD_FACTS)}.")
    return facts


def export(drafter: str | Path, out: str | Path, card: Path, repo_id: str) -> Path:
    """Write the repository folder `out` for a drafter.

    Args:
        drafter: folder or Hub id of the drafter, in our layout or the published one.
        out: folder to write; must be empty or absent, so that nothing foreign is published.
        card: YAML file with the card's facts.
        repo_id: the name the card's example uses.

    Returns:
        `out`.

    Raises:
        `ValueError`: `out` is not empty, a fact is missing, or the result fails validation.
    """
    out, facts = Path(out), read_facts(Path(card))
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"{out} is not empty: give a new folder, or empty this one.")
    model = DominoModel.from_pretrained(drafter, dtype=torch.bfloat16)
    model.save_pretrained(out)
    custom = Path(__file__).resolve().parent.parent / "custom_generate"
    shutil.copytree(custom, out / "custom_generate", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    model_card(model.config, {**facts, "repo_id": repo_id}).save(out / "README.md")
    problems = validate(out)
    if problems:
        raise ValueError(f"{out} is not a valid drafter repository:\n" + "\n".join(problems))
    return out


def push(folder: Path, repo_id: str, private: bool, revision: str | None, message: str) -> str:
    """Upload an exported folder. Returns the commit's URL."""
    api = HfApi()
    api.create_repo(repo_id, private=private, exist_ok=True)
    if revision:
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    return api.upload_folder(
        repo_id=repo_id, folder_path=folder, revision=revision, commit_message=message, delete_patterns="*"
    ).commit_url
