"""Every parameter of `generate` and of a target's forward, with values that change something."""

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from corpus import letter_tokenizer
from judging import DROP, Bench, Case, Heard
from tiny import make_draft
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, StaticCache, StoppingCriteria
from transformers.generation import LogitsProcessor

READS_LESS = "the text is the same, less of it is read"


class Forbid(LogitsProcessor):
    """Depends on the last token, like a grammar."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, (input_ids[:, -1:] * 7 + torch.arange(24)) % scores.shape[-1], -float("inf"))


class Stop(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] % 5 == 0


@contextlib.contextmanager
def _group() -> Iterator[None]:
    """A process group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _dynamic(target, **more) -> DynamicCache:
    return DynamicCache(config=target.config, **more)


def _static(target) -> StaticCache:
    return StaticCache(config=target.config, max_cache_len=40)


def _new(make):
    return lambda bench, target: {"past_key_values": make(target)}


def _continued(make, whole: bool = True, cut: int = 0):
    """A cache that plain `generate` filled, continued with all of the text or with the new tokens alone."""

    def options(bench: Bench, target) -> dict:
        cache, ids, mask = make(target), bench.ids[:, :-2], bench.mask[:, :-2]
        torch.manual_seed(0)
        said = target.generate(ids, attention_mask=mask, past_key_values=cache, max_new_tokens=4, eos_token_id=None)
        text = torch.cat([said, bench.ids[:, -3:]], dim=1)
        mask = torch.cat([mask, mask.new_ones(len(mask), text.shape[1] - mask.shape[1])], dim=1)
        if cut:
            cache.crop(-cut)
        held = int(cache.get_seq_length())
        return {"inputs": text if whole else text[:, held:], "attention_mask": mask, "past_key_values": cache}

    return options


def _sliding(several: bool) -> dict:
    return {"family": "mistral"}


def _holes(bench: Bench, target) -> dict:
    mask = bench.mask.clone()
    mask[:, -2] = 0
    return {"attention_mask": mask}


def _embeds(bench: Bench, target) -> dict:
    return {"inputs": DROP, "inputs_embeds": target.get_input_embeddings()(bench.ids).detach()}


def _positions(shift: int):
    def options(bench: Bench, target) -> dict:
        return {"position_ids": ((bench.mask.cumsum(-1) - 1).clamp(min=0) + shift)}

    return options


def _loop(bench: Bench, target) -> dict:
    return {"custom_generate": make_draft().decode}


def _only(row: int, text: Tensor) -> list[int]:
    return [10 * row + token for token in range(5, 15)]


CALL: dict[str, list[Case]] = {
    "inputs": [
        Case("other ids", lambda bench, target: {"inputs": bench.ids.where(bench.mask == 0, bench.ids % 7 + 3)})
    ],
    "generation_config": [
        Case(
            "an object",
            {
                "generation_config": GenerationConfig(max_new_tokens=6, repetition_penalty=1.3),
                "max_new_tokens": DROP,
                "do_sample": DROP,
            },
        )
    ],
    "logits_processor": [Case("depends on the text", lambda *_: {"logits_processor": [Forbid()]})],
    "stopping_criteria": [Case("stops single rows", {"stopping_criteria": [Stop()]})],
    "prefix_allowed_tokens_fn": [Case("depends on the row", {"prefix_allowed_tokens_fn": _only})],
    "synced_gpus": [Case("`True`", {"synced_gpus": True}, no_effect="it keeps processes in step", around=_group)],
    "assistant_model": [Case("the drafter", {}, no_effect="it is what all of this is about")],
    "streamer": [Case("any", lambda *_: {"streamer": Heard()}, no_effect="it is told the text")],
    "negative_prompt_ids": [
        Case("ids with `guidance_scale`", lambda bench, _: {"negative_prompt_ids": bench.ids, "guidance_scale": 1.5})
    ],
    "negative_prompt_attention_mask": [
        Case(
            "a mask with `guidance_scale`",
            lambda bench, _: {"negative_prompt_attention_mask": bench.mask, "guidance_scale": 1.5},
        )
    ],
    "custom_generate": [Case("`draft.decode`", _loop, no_effect="it is another way to the same loop")],
}

KWARGS: dict[str, list[Case]] = {
    "tokenizer": [
        Case("with `stop_strings`", lambda *_: {"tokenizer": letter_tokenizer(), "stop_strings": ["f", "Q", "C"]})
    ],
    "assistant_tokenizer": [Case("any", {"assistant_tokenizer": letter_tokenizer()})],
    "trust_remote_code": [Case("`True`", {"trust_remote_code": True}, no_effect="it permits code from the Hub")],
    "input_ids": [Case("ids", lambda bench, _: {"inputs": DROP, "input_ids": bench.ids % 7 + 3})],
    "attention_mask": [
        Case("padding on the left", {}, no_effect="every row of this table has one"),
        Case("one that hides tokens inside the text", _holes),
        Case("the same, sliding window", _holes, bench=_sliding),
    ],
    "position_ids": [
        Case("the usual", _positions(0), no_effect="they are what `generate` makes itself"),
        Case("others", _positions(3)),
    ],
    "past_key_values": [
        Case("`DynamicCache`, empty", _new(_dynamic), no_effect="it is filled"),
        Case("`DynamicCache`, all of the text", _continued(_dynamic)),
        Case("`DynamicCache`, the new text alone", _continued(_dynamic, whole=False)),
        Case("`DynamicCache`, cropped", _continued(_dynamic, cut=3)),
        Case("`DynamicCache`, sliding window, all of the text", _continued(_dynamic), bench=_sliding),
        Case("`DynamicCache`, sliding window, the new text alone", _continued(_dynamic, whole=False), bench=_sliding),
        Case("`DynamicCache(offloading=True)`", _new(lambda target: _dynamic(target, offloading=True)), plain=False),
        Case("`StaticCache`, empty", _new(_static), no_effect="it is filled"),
        Case("`StaticCache`, all of the text", _continued(_static)),
        Case("`StaticCache`, the new text alone", _continued(_static, whole=False)),
    ],
    "inputs_embeds": [Case("embeddings", _embeds)],
    "labels": [Case("ids", lambda bench, _: {"labels": bench.ids}, no_effect="it is for training")],
    "use_cache": [Case("see the configuration", {"use_cache": False})],
    "logits_to_keep": [Case("`2`", {"logits_to_keep": 2}, no_effect="the last logits are what counts")],
}
