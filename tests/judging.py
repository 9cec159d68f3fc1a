"""Runs one call with drafts and without, and says what came of it: "same", "refused: …", "other path: …"; anything else is an error."""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from unittest import mock

import torch
from oracles import oracle, told
from samegen import check_same, differ
from tiny import make_draft, make_target
from torch import Tensor
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

# No token of 39 … 46: the letter tokenizer has two letters for each. Rows end in tokens that such a one begins with.
IDS = torch.tensor([[38, 33, 10, 24, 29, 37, 31, 14], [0, 0, 0, 7, 12, 33, 8, 5], [0, 0, 0, 0, 0, 0, 21, 30]])
BASE = {"max_new_tokens": 8, "do_sample": False}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
DROP = object()  # as a value: the call goes without this argument
SEED = 0  # of every call, with drafts and without
OURS = ("assistant_model", "custom_generate")  # ways to a drafter
LOOP = "through transformers' assisted loop"


class Heard(BaseStreamer):
    """A streamer that keeps what it was told."""

    def __init__(self):
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value):
        self.tokens += value.flatten().tolist()

    def end(self):
        self.ended = True


@dataclass(frozen=True)
class Bench:
    """What a case is tried on: one row, or three that are ragged and padded on the left."""

    several: bool
    family: str = "llama"
    dtype: torch.dtype = torch.float64
    attention: str = "sdpa"

    @property
    def ids(self) -> Tensor:
        return IDS if self.several else IDS[:1]

    @property
    def mask(self) -> Tensor:
        return self.ids.ne(0).long()

    def target(self):
        target = make_target(self.family).to(self.dtype)
        target.set_attn_implementation(self.attention)
        return target


@dataclass(frozen=True)
class Case:
    """An argument with a value.

    Attributes:
        shown: the value, for the table. options: what is passed, or what makes it anew out of bench and target. sampled: whether
            the call samples. no_effect: why plain `generate` does the same without
            it. for_several: it matters to several rows alone. note: said in the table. bench: of what `Bench` is to be otherwise.
        plain: False where plain `generate` cannot run here. around: made before each call and taken down afterwards.
    """

    shown: str
    options: dict | Callable[[Bench, torch.nn.Module], dict]
    sampled: bool = False
    no_effect: str = ""
    for_several: bool = False
    note: str = ""
    bench: Callable[[bool], dict] = lambda several: {}
    plain: bool = True
    around: Callable[[], contextlib.AbstractContextManager] = field(default=contextlib.nullcontext)

    @property
    def draws(self) -> bool:
        """Whether the call without the argument samples."""
        return self.sampled and not (isinstance(self.options, dict) and "do_sample" in self.options)

    def arguments(self, bench: Bench, target) -> dict:
        made = self.options(bench, target) if callable(self.options) else self.options
        both = {"inputs": bench.ids, "attention_mask": bench.mask, **BASE, "do_sample": self.sampled, **made}
        return {name: value for name, value in both.items() if value is not DROP}


def outcome(case: Case, several: bool, loop: str = "auto") -> str:
    """What comes of a case: the call as it stands, and with scores and logits returned.

    The second goes through a drafter that is mostly right, for random ones seldom are. transformers' loop, where it is asked for,
    gets the second alone.

    Raises:
        `AssertionError`: ours differs from plain `generate`, refuses late, or the argument proves nothing.
    """
    bench = Bench(several, **case.bench(several))
    target, draft = bench.target(), make_draft().configure(loop=loop).to(bench.dtype)
    if loop == "transformers":
        return _one(case, bench, target, draft, EVERYTHING)[0]
    said, plain, found = _one(case, bench, target, draft, {})
    if said == "same" and not callable(case.options):
        draft = oracle("hidden").to(bench.dtype)
        told(draft, _text(plain), _mask(case.arguments(bench, target), plain))
    again, _, also = _one(case, bench, target, draft, EVERYTHING)
    assert said == again, (said, again)
    expected = not case.no_effect and (several or not case.for_several)
    assert plain is None or (found or also) == expected, f"{case.shown}: effect {found or also}, expected {expected}"
    return said


def _one(case: Case, bench: Bench, target, draft, more: dict):
    """(outcome, what plain `generate` returns, whether that is other than without the argument) of one call."""
    given = {"assistant_model": draft, **case.arguments(bench, target), **more}
    with case.around():
        ours, said = _ours(target, given)
    if ours is None:
        return said, None, False
    assert case.plain, "plain generate cannot run this here, so there is nothing to compare with"
    alone = {name: value for name, value in {**case.arguments(bench, target), **more}.items() if name not in OURS}
    torch.manual_seed(SEED)
    # transformers' loop draws with other random numbers: there plain goes along our text
    other = case.sampled and draft.settings.loop == "transformers"
    with case.around(), _drawn(_text(ours), _start(alone)) if other else contextlib.nullcontext():
        plain = target.generate(**alone)
    check_same(plain, ours, _mask(given, ours), _start(given))
    if isinstance(given.get("streamer"), Heard):
        assert vars(alone["streamer"]) == vars(given["streamer"])
    return said, plain, differ(plain, _bare(bench, case.draws, bool(more)))


def _ours(target, given: dict):
    """(output, outcome) of a call with drafts; None where it is refused, before the target runs."""
    ran: list[bool] = []
    hook = target.register_forward_pre_hook(lambda *_: ran.append(True))
    torch.manual_seed(SEED)
    try:
        with _log() as heard:
            return target.generate(**given), f"other path: {heard[0]}" if heard else "same"
    except (ValueError, NotImplementedError) as error:
        refusal = str(error)
    finally:
        hook.remove()
    assert not ran, f"refused after the target ran: {refusal}"
    return None, f"refused: {refusal}"


def _text(output) -> Tensor:
    return output.sequences if isinstance(output, GenerateDecoderOnlyOutput) else output


def _start(given: dict) -> int:
    """Columns of ids that are passed; a call without any begins with one token."""
    return given.get("inputs", given.get("input_ids", torch.ones(1, 1))).shape[1]


def _mask(given: dict, ours) -> Tensor:
    """[R, P] of the rows that come out."""
    mask = given.get("attention_mask", torch.ones(1, 1, dtype=torch.long))
    return mask.repeat_interleave(len(_text(ours)) // len(mask), dim=0)


@functools.cache
def _bare(bench: Bench, sampled: bool, everything: bool):
    """Plain `generate` without the argument. Sampled scores begin alike, whatever is drawn then."""
    torch.manual_seed(SEED)
    given = {"inputs": bench.ids, "attention_mask": bench.mask, **BASE, "do_sample": sampled}
    return bench.target().generate(**given, **(EVERYTHING if everything else {}))


@contextlib.contextmanager
def _drawn(text: Tensor, start: int) -> Iterator[None]:
    """Lets plain sampling draw the tokens of `text` [R, L] from column `start` on; each must be possible."""
    columns = iter(range(start, text.shape[1]))

    def multinomial(p: Tensor, num_samples: int) -> Tensor:
        tokens = text[:, next(columns)][:, None]
        assert bool((p.gather(1, tokens) > 0)[tokens != 0].all()), "said what the target never says"
        return tokens

    with mock.patch.object(torch, "multinomial", multinomial):
        yield
    assert next(columns, None) is None, "plain sampling ended before ours"


@contextlib.contextmanager
def _log() -> Iterator[list[str]]:
    """What `loop.py` says of another path."""
    heard: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("domino.generation.loop")
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)
    assert all(LOOP in line for line in heard), heard
