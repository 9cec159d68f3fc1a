"""The environment of every test, and the fixtures shared by all."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

# Triton reads it where kernels are defined: without a GPU they run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

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


@pytest.fixture(scope="session", autouse=True)
def quick_interpreter():
    """Triton's interpreter prepares the language anew for every call of a helper in a kernel; once a module and launch is enough."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        yield
        return
    prepare, prepared = interpreter._patch_lang, set()

    class Launch:
        def __init__(self, scope):
            self.scope = scope

        def restore(self):
            prepared.clear()
            self.scope.restore()

    def once(fn):
        if id(fn.__globals__) in prepared:
            return None
        prepared.add(id(fn.__globals__))
        return Launch(prepare(fn))

    interpreter._patch_lang = once
    yield
    interpreter._patch_lang = prepare
