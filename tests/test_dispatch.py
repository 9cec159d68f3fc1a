"""The dispatch is narrow, idempotent and reversible, and fails loudly when transformers moves the seam."""

import inspect

import pytest
import torch
from domino.generation import dispatch
from tiny import make_draft, make_target
from transformers import GenerationMixin

PROMPT = torch.tensor([[18, 20, 36, 18, 45, 14]])
GREEDY = {"do_sample": False, "max_new_tokens": 12}


@pytest.fixture
def uninstalled():
    dispatch.uninstall()
    yield
    dispatch.install()


def test_the_seam_is_where_we_think(uninstalled):
    assisted = inspect.signature(GenerationMixin._assisted_decoding).parameters
    assert list(assisted)[:3] == ["self", "input_ids", "logits_processor"]
    assert {"stopping_criteria", "generation_config", "assistant_model", "streamer"} <= set(assisted)
    assert "self._get_candidate_generator(" in inspect.getsource(GenerationMixin._assisted_decoding)
    validate = list(inspect.signature(GenerationMixin._validate_generation_mode).parameters)
    assert validate == ["self", "generation_mode", "generation_config", "generation_mode_kwargs"]
    source = inspect.getsource(GenerationMixin._assisted_decoding)
    for name in ("requires_model_outputs", "model_kwargs_overrides", "n_last_matches", "update_candidate_strategy"):
        assert name in source


def test_install_is_idempotent_and_reversible(uninstalled):
    original = GenerationMixin._assisted_decoding
    dispatch.install()
    once = GenerationMixin._assisted_decoding
    dispatch.install()
    assert GenerationMixin._assisted_decoding is once
    assert once is not original
    dispatch.uninstall()
    assert GenerationMixin._assisted_decoding is original
    dispatch.uninstall()
    assert GenerationMixin._assisted_decoding is original


def test_ordinary_assistants_are_not_touched():
    target, assistant = make_target(seed=0), make_target(seed=3)
    ours = target.generate(PROMPT, assistant_model=assistant, **GREEDY)
    lookup = target.generate(PROMPT, prompt_lookup_num_tokens=3, **GREEDY)
    assert torch.equal(ours, lookup)
    assert "_get_candidate_generator" not in vars(target)


def test_custom_generate_needs_no_dispatch(uninstalled):
    target, draft = make_target(), make_draft()
    plain = target.generate(PROMPT, **GREEDY)
    assert torch.equal(plain, target.generate(PROMPT, custom_generate=draft.decode, **GREEDY))
    assert draft.statistics.rounds > 0
    with pytest.raises(ValueError, match="num_beams=2"):
        target.generate(PROMPT, custom_generate=draft.decode, num_beams=2, max_new_tokens=4)
