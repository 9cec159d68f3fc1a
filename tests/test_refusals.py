"""Bad input gets one clear sentence, before the target runs."""

import pytest
import torch
from tiny import make_draft, make_target, stock
from transformers import DynamicCache, T5Config, T5ForConditionalGeneration

PROMPT = torch.tensor([[3, 9, 27, 5]])


def refuse(target, draft, match, ids=PROMPT, **options):
    def never(*args, **kwargs):
        raise AssertionError("the target ran")

    target.forward = never
    with pytest.raises(ValueError, match=match):
        target.generate(ids, assistant_model=draft, max_new_tokens=4, **options)


def test_target_of_another_shape():
    refuse(make_target(vocab_size=64), make_draft(), "vocab_size=48, got LlamaForCausalLM with vocab_size=64")
    refuse(make_target(hidden_size=64), make_draft(), "hidden_size=32, got LlamaForCausalLM with hidden_size=64")
    refuse(make_target(num_hidden_layers=2), make_draft(), r"reads the target's layers \[0, 2\].*has only 2")


def test_beams_and_modes():
    refuse(make_target(), make_draft(), "got num_beams=3", num_beams=3)
    refuse(make_target(), make_draft(), "keeps a state", guidance_scale=1.5)
    refuse(make_target(), make_draft(), "fill-in layout", speculation_type="dflash")
    refuse(make_target(), make_draft(), "lossy", assistant_ensemble_weight=0.5)


def test_a_custom_loop_does_not_speculate_as_transformers_does():
    target, draft = make_target(), make_draft()
    with pytest.raises(
        ValueError, match="custom_generate=draft.decode drafts with the head, got speculation_type='dflash'"
    ):
        target.generate(PROMPT, custom_generate=draft.decode, speculation_type="dflash", max_new_tokens=4)


def test_embeddings_instead_of_ids():
    target = make_target()
    embeds = target.get_input_embeddings()(PROMPT)
    with pytest.raises(ValueError, match="pass input_ids instead of inputs_embeds"):
        target.generate(inputs_embeds=embeds, assistant_model=make_draft(), max_new_tokens=4)


def test_half_a_conversation_with_its_cache():
    target, cache = make_target(), DynamicCache(config=make_target().config)
    target.generate(PROMPT, past_key_values=cache, max_new_tokens=8, do_sample=False, eos_token_id=None)
    mask = torch.ones(1, cache.get_seq_length() + 2, dtype=torch.long)
    refuse(target, stock(make_draft()), "whole sequence", ids=PROMPT[:, :2], past_key_values=cache, attention_mask=mask)


def test_stateful_target():
    target = make_target()
    type(target)._is_stateful, kept = True, type(target)._is_stateful
    try:
        refuse(target, make_draft(), "recurrent state")
    finally:
        type(target)._is_stateful = kept


def test_encoder_decoder_target():
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}
    target = T5ForConditionalGeneration(T5Config(vocab_size=48, **shape))
    refuse(target, make_draft(), "decoder-only target, got the encoder-decoder T5ForConditionalGeneration")
