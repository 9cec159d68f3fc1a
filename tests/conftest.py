"""The environment of every test, and the fixtures shared by all."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from tiny import make_draft, make_target

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def target():
    return make_target()


@pytest.fixture(scope="session")
def draft():
    return make_draft()


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright
    from spacesite import ARGUMENTS, CHROMIUM

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=ARGUMENTS)
        yield browser
        browser.close()
