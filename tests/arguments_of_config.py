"""Every attribute of `GenerationConfig`, with values that change something."""

import torch
from corpus import letter_tokenizer
from judging import DROP, Bench, Case
from tiny import make_draft
from transformers import CompileConfig, ContinuousBatchingConfig, SynthIDTextWatermarkingConfig, WatermarkingConfig

ENDS = {"eos_token_id": list(range(3, 20))}  # many, so that rows end early, each at a place of its own
DICT = {"return_dict_in_generate": True}
NO_BEAMS, NO_ASSISTANT = "only beam search reads it", "it is for draft models of transformers' own"
QUIET = "without `return_dict_in_generate` it returns nothing"


def _eager(several: bool) -> dict:
    """transformers' eager attention makes NaN of left padding in float64."""
    return {"attention": "eager", "dtype": torch.float32 if several else torch.float64}


def _one_token(bench: Bench, target) -> dict:
    return {"inputs": bench.ids[:, -1:], "attention_mask": bench.mask[:, -1:], "forced_bos_token_id": 7}


def _early(bench: Bench, target) -> dict:
    """Ends some rows in the middle of the others' texts: what row 1 says third."""
    return {"stop_strings": ["f", "Q", "C"], "tokenizer": letter_tokenizer()}


def _is(name: str, value, **more) -> list[Case]:
    return [Case(f"`{value!r}`", {name: value}, **more)]


def _drawn(name: str, value, **more) -> list[Case]:
    return [Case(f"`{value!r}`, sampling", {name: value}, sampled=True, **more)]


def _with(name: str, value, others: dict, **more) -> list[Case]:
    """A value that needs others beside it."""
    shown = ", ".join(f"{key}={other!r}" for key, other in others.items())
    return [Case(f"`{value!r}` with `{shown}`", {name: value, **others}, **more)]


def _cache(kind: str, **more) -> Case:
    return Case(f'`"{kind}"`', {"cache_implementation": kind}, no_effect="it says where keys and values lie", **more)


CONFIG: dict[str, list[Case]] = {
    "max_length": [Case("`12`", {"max_length": 12, "max_new_tokens": DROP})],
    "max_new_tokens": _is("max_new_tokens", 5),
    "min_length": [Case("`14` with many end tokens", {"min_length": 14, **ENDS})],
    "min_new_tokens": [Case("`6` with many end tokens", {"min_new_tokens": 6, **ENDS})],
    "early_stopping": _is("early_stopping", True, no_effect=NO_BEAMS),
    "max_time": _is("max_time", 0.0),
    "stop_strings": [Case("three strings with `tokenizer`", _early)],
    "do_sample": [Case("`True`", {"do_sample": True}, sampled=True)],
    "num_beams": _is("num_beams", 3),
    "use_mtp": _is("use_mtp", True, plain=False),
    "use_cache": _is("use_cache", False),
    "cache_implementation": [
        _cache("dynamic"),
        _cache("static"),
        _cache("offloaded", plain=False),
        _cache("offloaded_static", plain=False),
        _cache("quantized", plain=False),
        _cache("hybrid"),
        _cache("sliding_window"),
        _cache("hybrid_chunked"),
        _cache("offloaded_hybrid", plain=False),
        _cache("offloaded_hybrid_chunked", plain=False),
        _cache("paged", plain=False),
    ],
    "cache_config": _is("cache_config", {"nbits": 4}, no_effect="only a quantized cache reads it"),
    "max_cache_len": _with("max_cache_len", 64, {"cache_implementation": "static"}, no_effect="it reserves memory"),
    "temperature": _drawn("temperature", 0.6),
    "top_k": _drawn("top_k", 7),
    "top_p": _drawn("top_p", 0.8),
    "min_p": _drawn("min_p", 0.1),
    "top_h": _drawn("top_h", 0.5),
    "typical_p": _drawn("typical_p", 0.7),
    "epsilon_cutoff": _drawn("epsilon_cutoff", 0.02),
    "eta_cutoff": _drawn("eta_cutoff", 0.02),
    "repetition_penalty": _is("repetition_penalty", 1.4) + _drawn("repetition_penalty", 1.4),
    "encoder_repetition_penalty": _is("encoder_repetition_penalty", 0.6),
    "length_penalty": _is("length_penalty", 2.0, no_effect=NO_BEAMS),
    "no_repeat_ngram_size": _with("no_repeat_ngram_size", 1, {"repetition_penalty": 0.7}),
    "bad_words_ids": [Case("18 lists", {"bad_words_ids": [*([token] for token in range(3, 20)), [20, 21]]})],
    "renormalize_logits": _is("renormalize_logits", True),
    "forced_bos_token_id": [Case("`7`, prompts of one token", _one_token)],
    "forced_eos_token_id": _is("forced_eos_token_id", 7),
    "remove_invalid_values": [
        Case(
            "`True` with logits that are no number",
            {"remove_invalid_values": True, "sequence_bias": [[[9], float("nan")]]},
        )
    ],
    "exponential_decay_length_penalty": _is("exponential_decay_length_penalty", (2, 3.0)),
    "suppress_tokens": [Case("17 tokens", {"suppress_tokens": list(range(3, 20))})],
    "begin_suppress_tokens": [Case("37 tokens", {"begin_suppress_tokens": list(range(3, 40))})],
    "sequence_bias": _is("sequence_bias", [[[9], 2.5], [[9, 11], -8.0]]),
    "token_healing": [Case("`True` with `tokenizer`", {"token_healing": True, "tokenizer": letter_tokenizer()})],
    "guidance_scale": _is("guidance_scale", 1.5),
    "watermarking_config": [
        Case("`WatermarkingConfig()`", {"watermarking_config": WatermarkingConfig()}),
        Case(
            "`SynthIDTextWatermarkingConfig`, sampling",
            {"watermarking_config": SynthIDTextWatermarkingConfig(ngram_len=3, keys=[5, 7, 9])},
            sampled=True,
        ),
    ],
    "num_return_sequences": _drawn("num_return_sequences", 3),
    "output_attentions": [
        Case("`True` with `return_dict_in_generate`", {"output_attentions": True, **DICT}, bench=_eager),
        Case("`True` alone", {"output_attentions": True}, bench=_eager),
    ],
    "output_hidden_states": [
        Case("`True` with `return_dict_in_generate`", {"output_hidden_states": True, **DICT}),
        Case("`True` alone", {"output_hidden_states": True}),
    ],
    "output_scores": [
        Case("`True` with `return_dict_in_generate`", {"output_scores": True, "repetition_penalty": 1.4, **DICT}),
        Case("`True` alone", {"output_scores": True}, no_effect=QUIET),
    ],
    "output_logits": [
        Case("`True` with `return_dict_in_generate`", {"output_logits": True, "repetition_penalty": 1.4, **DICT}),
        Case("`True` alone", {"output_logits": True}, no_effect=QUIET),
    ],
    "return_dict_in_generate": _is("return_dict_in_generate", True),
    "pad_token_id": [Case("`40` with many end tokens", {"pad_token_id": 40, **ENDS})],
    "bos_token_id": [Case("`9` without a prompt", {"bos_token_id": 9, "inputs": DROP, "attention_mask": DROP})],
    "eos_token_id": [Case("17 tokens", ENDS)],
    "encoder_no_repeat_ngram_size": _is("encoder_no_repeat_ngram_size", 1),
    "decoder_start_token_id": _is("decoder_start_token_id", 5, no_effect="only encoder-decoder models read it"),
    "is_assistant": _is("is_assistant", True),
    "num_assistant_tokens": _is("num_assistant_tokens", 2, no_effect="it bounds the drafts of a round"),
    "num_assistant_tokens_schedule": _is("num_assistant_tokens_schedule", "heuristic", no_effect=NO_ASSISTANT),
    "assistant_confidence_threshold": _is("assistant_confidence_threshold", 0.9, no_effect=NO_ASSISTANT),
    "prompt_lookup_num_tokens": _is("prompt_lookup_num_tokens", 3),
    "max_matching_ngram_size": _is("max_matching_ngram_size", 3, no_effect="only `prompt_lookup_num_tokens` reads it"),
    "assistant_early_exit": _is("assistant_early_exit", 2),
    "assistant_lookbehind": _is("assistant_lookbehind", 4, no_effect=NO_ASSISTANT),
    "target_lookbehind": _is("target_lookbehind", 4, no_effect=NO_ASSISTANT),
    "assistant_ensemble_weight": _is("assistant_ensemble_weight", 0.5),
    "speculation_type": [
        *_is("speculation_type", "dflash"),
        Case(
            "`'dflash'`, drafter with `shift_label` false",
            lambda bench, target: {"speculation_type": "dflash", "assistant_model": make_draft(shift_label=False)},
            no_effect="transformers' own dflash reads the drafter without its head",
        ),
        *_is("speculation_type", "mtp"),
    ],
    "compile_config": [
        Case(
            "`CompileConfig()` with `cache_implementation='static'`",
            {"compile_config": CompileConfig(), "cache_implementation": "static"},
            no_effect="it says how transformers compiles; the engine's setting is `compile`",
        )
    ],
    "disable_compile": _is(
        "disable_compile", True, no_effect="nothing is compiled unless the setting `compile` says so"
    ),
    "continuous_batching_config": [
        Case(
            "`ContinuousBatchingConfig()`",
            {"continuous_batching_config": ContinuousBatchingConfig()},
            no_effect="only `generate_batch` reads it",
        )
    ],
    "low_memory": _is("low_memory", True, no_effect="only contrastive search reads it"),
    "penalty_alpha": _with("penalty_alpha", 0.6, {"top_k": 4}, plain=False)
    + _with("penalty_alpha", 0.6, {"top_k": 4, "trust_remote_code": True}, plain=False),
    "dola_layers": _is("dola_layers", "low", plain=False),
    "diversity_penalty": _is("diversity_penalty", 0.5, no_effect="only groups of beams read it"),
    "num_beam_groups": _with("num_beam_groups", 2, {"num_beams": 4, "trust_remote_code": True}, plain=False),
    "constraints": _with("constraints", [1], {"num_beams": 4, "trust_remote_code": True}, plain=False),
    "force_words_ids": _with("force_words_ids", [[9]], {"num_beams": 4, "trust_remote_code": True}, plain=False),
    "prefill_chunk_size": _is("prefill_chunk_size", 3, no_effect="it bounds the memory of a prompt"),
    "transformers_version": _is("transformers_version", "5.0.0", no_effect="it says who wrote the file"),
}
