"""The README runs, its links lead somewhere, and the packages depend on each other one way."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Who may import whom, beyond itself; kernels and configuration are at the bottom.
ALLOWED = {
    "configuration_domino": set(),
    "settings": set(),
    "installing": set(),
    "kernels": set(),
    "acceleration": set(),
    "drafting": {"kernels", "verification", "acceleration"},
    "verification": {"acceleration", "drafting"},
    "generation": {"drafting", "verification", "acceleration"},
    "modeling_domino": {"configuration_domino", "drafting", "generation"},
    "hub": {"configuration_domino", "modeling_domino"},
    "embedded": {"installing"},
    "training": {"configuration_domino", "modeling_domino", "generation", "evaluation", "embedded", "settings"},
    "training/losses": {"drafting"},
    "evaluation": {"generation", "modeling_domino", "embedded", "settings"},
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


def test_a_command_by_line_thirty():
    assert "make demo" in "\n".join((ROOT / "README.md").read_text().splitlines()[:30])


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_nothing_left_to_fill_in(page):
    assert "@@" not in (ROOT / page).read_text()


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()):
        assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), link


def test_the_readme_example_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    (example,) = [block for block in blocks if "target_folder" in block]
    exec(compile(example, "README.md", "exec"), {})
    assert "2, 4," in capsys.readouterr().out
