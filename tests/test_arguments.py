"""Every argument of `generate` and `GenerationConfig`, with a drafter: as plain `generate`, another path, or refused in a sentence."""

import re

import pytest
from arguments import CASES, GROUPS, expected, found, table, written


def test_no_argument_is_missing_or_unknown():
    """A new transformers fails here, by name."""
    assert {title: sorted(group) for title, group in GROUPS.items()} == {
        title: sorted(names) for title, names in expected().items()
    }


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
@pytest.mark.parametrize(("name", "shown"), CASES, ids=lambda text: text.replace("`", ""))
def test_as_plain_generate_or_refused(name, shown, several):
    said = found(name, shown, several)
    assert re.fullmatch(r"same|other path: .+|refused: .+", said), said


@pytest.mark.parametrize(("name", "shown"), CASES, ids=lambda text: text.replace("`", ""))
def test_so_through_transformers_loop(name, shown):
    assert re.fullmatch(r"same|refused: .+", found(name, shown, several=False, loop="transformers"))


def test_the_page_says_what_comes_out():
    """Otherwise: python tests/arguments.py --write"""
    assert table() == written()
