"""The table of docs/generation.md: every argument of `generate` and `GenerationConfig`, and what comes of it with a drafter.

python tests/arguments.py --write    writes it anew; `test_arguments.py` compares it with what comes out.
"""

import functools
import inspect
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from arguments_of_call import CALL, KWARGS
from arguments_of_config import CONFIG
from judging import Case, outcome
from tiny import make_target
from transformers import GenerationConfig, GenerationMixin

PAGE = Path(__file__).resolve().parent.parent / "docs" / "generation.md"
BEGIN, END = "<!-- written by tests/arguments.py -->\n", "<!-- until here -->\n"
GROUPS = {"`generate`": CALL, "its `kwargs`": KWARGS, "`GenerationConfig`": CONFIG}
CASES: dict[tuple[str, str], Case] = {
    (name, case.shown): case for group in GROUPS.values() for name, cases in group.items() for case in cases
}


def expected() -> dict[str, set[str]]:
    """The arguments that this transformers has, by group."""
    call = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    source = "".join(
        map(inspect.getsource, (GenerationMixin.generate, GenerationMixin._extract_generation_mode_kwargs))
    )
    taken = set(re.findall(r'kwargs\.pop\("(\w+)"', source))
    forward = set(inspect.signature(make_target().forward).parameters) - {"kwargs"}
    config = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    return dict(zip(GROUPS, (call, taken | forward, config), strict=True))


@functools.cache
def found(name: str, shown: str, several: bool, loop: str = "auto") -> str:
    """What comes of a case, as the table has it: one line."""
    # transformers prints the whole drafter in one of its refusals
    said = outcome(CASES[name, shown], several, loop).split("(\n")[0]
    return said.replace("|", "\\|").replace("\n", " ")


def table() -> str:
    """The tables, one a group."""
    lines = []
    for title, group in GROUPS.items():
        lines += ["", f'| {title} | value | with a drafter | `loop="transformers"`, one row |', "|---|---|---|---|"]
        lines += [
            f"| `{name}` | {case.shown} | {_cell(name, case)} | {_second(name, case)} |"
            for name, cases in group.items()
            for case in cases
        ]
    return "\n".join(lines) + "\n\n"


def _cell(name: str, case: Case) -> str:
    one, several = (found(name, case.shown, rows) for rows in (False, True))
    if one != several:
        return f"one row: {one} Several rows: {several}"
    return f"same; {case.no_effect}" if one == "same" and case.no_effect else one


def _second(name: str, case: Case) -> str:
    """The other loop, where it was asked for."""
    one, second = found(name, case.shown, False), found(name, case.shown, False, "transformers")
    return "likewise" if second == one else second


def written() -> str:
    """The tables as the page has them."""
    return PAGE.read_text().split(BEGIN)[1].split(END)[0]


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.split(END)[1])
