"""Whether two outputs of `generate` are the same: texts exactly, numbers up to rounding, wherever a row lives."""

import torch
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput

FIELDS = ("scores", "logits", "hidden_states", "attentions", "past_key_values")


def check_same(plain, ours, mask: Tensor, start: int) -> None:
    """Raise `AssertionError` where they differ.

    Args:
        plain, ours: ids [R, L], or what is returned with them. mask: [R, P], over all of the text before the call. start: columns
            of ids that the caller passed. Where a row has no token, in padding and behind its end, plain `generate` returns what
            its padding made of it, and nothing is compared.
    """
    assert type(plain) is type(ours), (type(plain), type(ours))
    if isinstance(plain, Tensor):
        assert torch.equal(plain, ours), (plain, ours)
        return
    assert torch.equal(plain.sequences, ours.sequences), (plain.sequences, ours.sequences)
    for name in FIELDS:
        assert (_of(plain, name) is None) == (_of(ours, name) is None), name
    lives = _lives(ours, start)
    for name in ("scores", "logits"):
        for step, (one, other) in enumerate(_pairs(_of(plain, name), _of(ours, name))):
            _close(one, other, lives[step], name)
    first = mask.bool()
    for step, (one, other) in enumerate(_pairs(_of(plain, "hidden_states"), _of(ours, "hidden_states"))):
        for a, b in _pairs(one, other):
            _close(a, b, first[:, -a.shape[1] :] if step == 0 else lives[step][:, None], "hidden_states")
    for step, (one, other) in enumerate(_pairs(_of(plain, "attentions"), _of(ours, "attentions"))):
        for a, b in _pairs(one, other):
            queries = first[:, -a.shape[2] :] if step == 0 else lives[step][:, None]
            _close(a.transpose(1, 2), b.transpose(1, 2), queries, "attentions")
    check_same_cache(plain.past_key_values, ours.past_key_values, mask, lives)


def check_same_cache(plain, ours, mask: Tensor, lives: Tensor) -> None:
    """The same of two caches; `lives` [steps, R] says which rows said something in each step. The last column was not read."""
    assert type(plain) is type(ours)
    assert plain.get_seq_length() == ours.get_seq_length()
    real = torch.cat([mask.bool(), lives[:-1].T], dim=1)
    for one, other in zip(plain.layers, ours.layers, strict=True):
        for a, b in ((one.keys, other.keys), (one.values, other.values)):
            width = int(plain.get_seq_length())
            kept = real[:, -a.shape[2] :] if a.shape[2] < width else real
            _close(
                a.transpose(1, 2)[:, : kept.shape[1]], b.transpose(1, 2)[:, : kept.shape[1]], kept, "past_key_values"
            )


def differ(one, other) -> bool:
    """Whether two outputs of plain `generate` show any difference that a caller could see."""
    if type(one) is not type(other):
        return True
    if isinstance(one, Tensor):
        return not torch.equal(one, other)
    if not torch.equal(one.sequences, other.sequences):
        return True
    if any((_of(one, name) is None) != (_of(other, name) is None) for name in FIELDS):
        return True
    return any(
        not torch.equal(a, b) for a, b in zip(_of(one, "scores") or (), _of(other, "scores") or (), strict=False)
    )


def _lives(ours: GenerateDecoderOnlyOutput, start: int) -> Tensor:
    """[steps, R]: rows that have ended are returned as zeros, which no living row's logits are; their texts end in padding."""
    said = _of(ours, "logits") or _of(ours, "scores")
    if said is not None:
        return torch.stack([(step != 0).any(dim=1) for step in said])
    return ours.sequences[:, start:].ne(0).flip(1).cumsum(dim=1).flip(1).gt(0).T


def _of(output: GenerateDecoderOnlyOutput, name: str):
    return getattr(output, name, None)


def _pairs(one, other):
    return zip(one or (), other or (), strict=True)


def _close(plain: Tensor, ours: Tensor, where: Tensor, name: str) -> None:
    assert plain.shape == ours.shape, (name, plain.shape, ours.shape)
    assert plain.dtype == ours.dtype, (name, plain.dtype, ours.dtype)
    torch.testing.assert_close(ours[where], plain[where], rtol=1e-5, atol=1e-5, msg=lambda text: f"{name}: {text}")
