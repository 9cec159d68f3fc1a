"""The Space on a Hub server on loopback, and started from what lies there."""

import re
import subprocess
import sys
import time

import pytest
import regex
import yaml
from corpus import save_target
from domino.cli import main
from gradio_client import Client
from localhub import LocalHub
from tiny import make_draft

pytestmark = pytest.mark.hub

FETCH = """
import sys
from huggingface_hub import snapshot_download
snapshot_download("tester/domino", repo_type="space", local_dir=sys.argv[1])
"""
# Starts app.py as the Hub does, and says which package it runs.
START = """
import runpy, sys
sys.path.insert(0, ".")
import domino
print(domino.__file__, flush=True)
runpy.run_path("app.py", run_name="__main__")
"""


def run(*args, **kwargs):
    done = subprocess.run([sys.executable, *map(str, args)], capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_deploy_fetch_and_start(tmp_path, monkeypatch):
    save_target(tmp_path / "target")
    make_draft().float().save_pretrained(tmp_path / "draft")
    with LocalHub() as hub:
        for name, value in hub.environment(tmp_path / "home").items():
            monkeypatch.setenv(name, value)
        pair = ("--target", tmp_path / "target", "--drafter", tmp_path / "draft")
        out = run("-m", "domino", "space", "--deploy", "tester/domino", "--private", *pair)
        assert "Pushed: " in out
        repo = hub.repos["space", "tester/domino"]
        assert repo.private
        tree = repo.commits[repo.branches["main"]]["tree"]
        assert {"app.py", "README.md", "requirements.txt", "domino/space/page.py", "domino/docs/results.md"} <= set(
            tree
        )
        assert {"models/pair.json", "models/target/model.safetensors", "models/drafter/config.json"} <= set(tree)
        assert not [path for path in tree if "__pycache__" in path or path.startswith("domino/tests")]
        card = yaml.safe_load(tree["README.md"]["data"].decode().split("---")[1])
        assert card["sdk"] == "gradio"
        assert card["app_file"] == "app.py"
        assert regex.fullmatch(
            r"\p{Emoji_Presentation}", card["emoji"]
        )  # what the Hub takes; U+1F06B, a domino, is none
        run("-c", FETCH, tmp_path / "space")
    start(tmp_path / "space", monkeypatch)


def start(folder, monkeypatch):
    """Nothing but the fetched tree, without a Hub."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("DOMINO_SPACE_DTYPE", "float32")
    log = folder.parent / "log"
    with log.open("w") as file:
        server = subprocess.Popen([sys.executable, "-c", START], cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        while not (url := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):  # the first port that is free
            assert server.poll() is None, log.read_text()
            time.sleep(0.2)
        assert log.read_text().startswith(str(folder / "domino" / "__init__.py"))
        client = Client(url[0], verbose=False)
        found = client.predict("w5 w6 w7", max_new_tokens=12, api_name="/compare")
        assert found["phase"] == "done"
        assert found["same_text"]
        assert client.predict(api_name="/status")["models"] == ["target"]
    finally:
        server.terminate()
        server.wait(60)


def test_a_wrong_command_or_setting_is_one_sentence(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["domino", "space"])
    monkeypatch.setenv("DOMINO_SPACE_DTYPE", "nn")
    with pytest.raises(SystemExit, match="DOMINO_SPACE_DTYPE must be one of bfloat16"):
        main()
    monkeypatch.setattr(sys, "argv", ["domino", "space", "--target", "x"])
    with pytest.raises(SystemExit, match="needs a drafter"):
        main()
