"""What a user does after `pip install`; run by `make package` with the Python of a fresh environment, outside the repository."""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REMOTE = """
import sys
from transformers import AutoModel
print(type(AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True)).__module__)
"""


def readme_example() -> str:
    """The one block of README.md that runs as it stands."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    (example,) = [block for block in blocks if "target_folder" in block]
    return example


def run(*command: str) -> str:
    """What a command prints. Raises `CalledProcessError` where it fails."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Exits with a traceback at the first thing that does not work."""
    where = run(sys.executable, "-I", "-c", "import domino; print(domino.__file__)").strip()
    assert not Path(where).is_relative_to(ROOT) or "site-packages" in where, where
    drafter = run(sys.executable, "-I", "-c", "from domino.embedded.smollm2 import DRAFTER; print(DRAFTER)").strip()
    domino = str(Path(sys.executable).parent / "domino")
    assert "validate" in run(domino, "--help")
    assert "a complete drafter" in run(domino, "validate", drafter)
    assert run(sys.executable, "-I", "-c", REMOTE, drafter).startswith("transformers_modules.")
    with tempfile.TemporaryDirectory() as folder:
        assert "| gsm8k |" in run(domino, "eval", "--tasks", "gsm8k=1", "--max-new-tokens", "8", "--out", folder)
    said = run(sys.executable, "-I", "-c", readme_example())
    assert said.strip(), "README's example prints nothing"
    print(f"{said}\nThe wheel works: {where}")


if __name__ == "__main__":
    main()
