"""Push, then pull by id, tag and commit from a Hub server on loopback, and generate without the package installed."""

import subprocess
import sys

import pytest
from localhub import LocalHub
from test_export import FACTS, run_alone
from tiny import make_draft, make_target

pytestmark = pytest.mark.hub


# A drafter loaded by remote code pushes itself, and what it pushed loads again.
PUSH_AGAIN = """
import sys
sys.modules["domino"] = None
import torch
from transformers import AutoModel
draft = AutoModel.from_pretrained("tester/domino-tiny", trust_remote_code=True)
draft.push_to_hub("tester/again", commit_message="Again")
again = AutoModel.from_pretrained("tester/again", trust_remote_code=True)
assert all(torch.equal(a, b) for a, b in zip(draft.state_dict().values(), again.state_dict().values()))
"""


def domino(*args):
    done = subprocess.run([sys.executable, "-m", "domino", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_push_and_pull(tmp_path, monkeypatch):
    (tmp_path / "card.yaml").write_text(FACTS)
    make_target().float().save_pretrained(tmp_path / "target")
    with LocalHub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        for seed in (1, 2):
            make_draft(seed).save_pretrained(tmp_path / f"draft{seed}")
            domino(
                "export", tmp_path / f"repo{seed}", "--drafter", tmp_path / f"draft{seed}", "--card",
                tmp_path / "card.yaml", "--push", "tester/domino-tiny", "--private", "--message", f"Drafter {seed}",
            )  # fmt: skip
            repo = hub.repos["model", "tester/domino-tiny"]
            if seed == 1:
                first = repo.branches["main"]
                repo.tags["v1"] = first
        domino(
            "export", tmp_path / "repo3", "--drafter", tmp_path / "draft1", "--card", tmp_path / "card.yaml",
            "--push", "tester/domino-tiny", "--revision", "dev", "--message", "On a branch",
        )  # fmt: skip
        assert repo.commits[repo.branches["dev"]]["title"] == "On a branch"
        assert repo.private
        assert {c["title"] for c in repo.commits.values()} >= {"Drafter 1", "Drafter 2"}

        def pull(name, revision):
            return run_alone("tester/domino-tiny", tmp_path / "target", tmp_path / name, revision)

        assert repo.branches["main"] in pull("main", "main")
        assert first in pull("tag", "v1")
        assert first in pull("sha", first)
        saved = [(tmp_path / n / "model.safetensors").read_bytes() for n in ("main", "tag", "sha")]
        assert saved[1] == saved[2] != saved[0]

        done = subprocess.run([sys.executable, "-c", PUSH_AGAIN], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        files = hub.repos["model", "tester/again"].commits[hub.repos["model", "tester/again"].branches["main"]]["tree"]
        assert "drafting/tree.py" in files
        assert "rollout.py" not in files

        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # now from the cache alone, at the pinned revision
        assert first in pull("cached", first)
        assert (tmp_path / "cached" / "model.safetensors").read_bytes() == saved[1]
