"""What stands beside figures, on machines without git and in somebody else's repository too."""

import shutil
import subprocess
import sys

import pytest
from domino.evaluation import provenance as module
from domino.evaluation.provenance import provenance


def test_a_command_can_be_run_again(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/domino", "eval", "--out", "my runs"])
    assert provenance()["command"] == "domino eval --out 'my runs'"


def test_a_machine_without_git_measures_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance()["commit"] == "unknown"


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_commit_is_the_package_s_own(monkeypatch, tmp_path):
    """Not that of a project in whose folder the package was installed."""
    package = tmp_path / "lib" / "domino"
    (package / "evaluation").mkdir(parents=True)
    monkeypatch.setattr(module, "__file__", str(package / "evaluation" / "provenance.py"))

    def commit(folder):
        me = ["-c", "user.name=a", "-c", "user.email=a@b"]
        for command in (["init"], [*me, "commit", "--allow-empty", "-m", "first"]):
            subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
        found = subprocess.run(["git", "describe", "--always"], cwd=folder, check=True, capture_output=True, text=True)
        return found.stdout.strip()

    commit(tmp_path)
    assert provenance()["commit"] == "unknown"
    own = commit(package)
    assert provenance()["commit"] == own
