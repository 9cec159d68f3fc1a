"""The README runs, its links lead somewhere, and the packages depend on each other one way."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from smoke import readme_example

ROOT = Path(__file__).resolve().parent.parent
# Who may import whom, beyond itself; kernels and configuration are at the bottom.
ALLOWED = {
    "configuration_domino": set(),
    "settings": set(),
    "installing": set(),
    "devices": set(),
    "kernels": {"devices"},
    "acceleration": {"devices", "kernels"},
    "drafting": {"kernels", "verification", "acceleration"},
    "verification": {"acceleration", "drafting"},
    "generation": {"drafting", "verification", "acceleration"},
    "modeling_domino": {"configuration_domino", "drafting", "generation"},
    "doctor": {
        "configuration_domino",
        "modeling_domino",
        "generation",
        "acceleration",
        "kernels",
        "devices",
        "embedded",
        "evaluation",
        "installing",
    },
    "hub": {"configuration_domino", "modeling_domino"},
    "embedded": {"installing"},
    "training": {
        "configuration_domino",
        "modeling_domino",
        "generation",
        "evaluation",
        "embedded",
        "installing",
        "settings",
    },
    "training/losses": {"drafting"},
    "evaluation": {"generation", "modeling_domino", "embedded", "installing", "settings"},
    "evaluation/accuracy": {"evaluation", "installing"},
    "evaluation/bench": {
        "configuration_domino",
        "modeling_domino",
        "drafting",
        "generation",
        "kernels",
        "embedded",
        "evaluation",
        "settings",
    },
    "evaluation/report": {"evaluation", "installing"},
    "space": {"evaluation", "generation", "drafting", "verification", "embedded"},
}


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part):
    files = [ROOT / f"{part}.py"] if (ROOT / f"{part}.py").is_file() else sorted((ROOT / part).glob("*.py"))
    assert files
    for file in files:
        depth = len(file.relative_to(ROOT).parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level == depth and node.module:
                assert node.module.split(".")[0] in ALLOWED[part] | {part}, f"{file}: {ast.unparse(node)}"


@pytest.mark.parametrize("part", ["generation", "drafting", "verification"])
def test_every_signature_is_typed(part):
    for file in sorted((ROOT / part).glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                each = [
                    *node.args.posonlyargs,
                    *node.args.args,
                    *node.args.kwonlyargs,
                    node.args.vararg,
                    node.args.kwarg,
                ]
                bare = [arg.arg for arg in each if arg and arg.annotation is None and arg.arg not in ("self", "cls")]
                assert not bare, f"{file}:{node.lineno}: {node.name} takes {', '.join(bare)} of no type"
                assert node.returns is not None, f"{file}:{node.lineno}: {node.name} returns no type"


def test_a_command_by_line_thirty():
    assert "make demo" in "\n".join((ROOT / "README.md").read_text().splitlines()[:30])


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_nothing_left_to_fill_in(page):
    assert "@@" not in (ROOT / page).read_text()


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), link


def test_the_readme_example_runs(capsys):
    exec(compile(readme_example(), "README.md", "exec"), {})
    assert "2, 4," in capsys.readouterr().out


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_prose_is_wrapped(page):
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.S | re.M)
    assert not [line for line in text.splitlines() if len(line) > 120 and not line.startswith(("|", "!"))]


def make_targets():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("path", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda path: path.stem)
def test_workflows_call_make_and_nothing_else(path):
    jobs = yaml.safe_load(path.read_text())["jobs"]
    for job in jobs.values():
        named = job.get("strategy", {}).get("matrix", {}).get("target", [])
        assert set(named) <= make_targets()
        for line in [step["run"] for step in job["steps"] if "run" in step]:
            command, target = line.split(" ", 1)
            assert command == "make"
            assert target in make_targets() or (target == "${{ matrix.target }}" and named)


def test_ci_calls_make_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text().splitlines()[2:]
    assert lines == ["make quality", "make test"]
    assert {line.removeprefix("make ") for line in lines} <= make_targets()


def test_contributing_names_what_there_is():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"^make ([\w-]+)", text, re.M)) <= make_targets()
    named = re.findall(r"`((?:tests|evaluation|verification)/[\w/]*(?:\.py)?)`", text)
    assert named
    assert all((ROOT / name).exists() for name in named)
