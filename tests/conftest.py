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
