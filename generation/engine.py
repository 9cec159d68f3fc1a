"""The engine: our own decode loop, for any number of rows.

It keeps the semantics of `generate` (processors, stopping, streaming, output) and has none of the limits of transformers' assisted
loop: rows may be many and ragged, drafts may end the text, the number of drafts follows what pays.
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria

from .. verification.accept import RULES, greedy, likeliest  # fmt: skip  # isort: skip
from . checks import check_engine, check_target  # fmt: skip  # isort: skip
from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. acceleration.graphs import Graphs, recorder  # fmt: skip  # isort: skip
from . processing import Processing  # fmt: skip  # isort: skip
from .. drafting.domino import RowDraft  # fmt: skip  # isort: skip
from .. verification.target import RowTarget, compile_forward  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . statistics import DraftStatistics  # fmt: skip  # isort: skip
from . budget import Round, VerifyLength  # fmt: skip  # isort: skip
from .. acceleration.view import decoding_view  # fmt: skip  # isort: skip


logger = logging.getLogger(__name__)


def _whole(value, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


@dataclass(frozen=True)
class EngineSettings:
    """How an engine decodes.

    Attributes:
        accept: rule for sampled drafts, see `accept.RULES`; greedy decoding has but one.
        verify_length: drafts of a round, or "auto" for what pays (`verify_length.py`); `num_assistant_tokens` bounds either.
        draft_window: recent tokens the drafter's context keeps besides the first four; None keeps all.
        prefill_chunk: tokens of a prompt read at a time.
        candidate_pool: tokens that corrected drafts come from, the likeliest of the block by base logits; 0 is the whole vocabulary.
        compile: `torch.compile` the target's verification and the drafter's block: a minute or two once, then faster rounds.
        graphs: on a GPU, record verification, block and head once for a shape and replay them as one launch each (`graphs.py`).
        pack: on a CPU in bfloat16, arrange the weights of linear layers once for its matrix units (`packed.py`), which takes the
            memory of the weights again and is left out where a quarter of the free memory does not hold that.
    """

    accept: str = "block"
    verify_length: int | str = "auto"
    draft_window: int | None = None
    prefill_chunk: int = 512
    compile: bool = False
    graphs: bool = False
    candidate_pool: int = 1024
    pack: bool = True

    def __post_init__(self):
        if self.accept not in RULES:
            raise ValueError(f"accept must be one of {', '.join(RULES)}, got {self.accept!r}.")
        if self.verify_length != "auto" and not _whole(self.verify_length, 0):
            raise ValueError(f'verify_length must be "auto" or a number of drafts, got {self.verify_length!r}.')
        if not _whole(self.candidate_pool, 0):
            raise ValueError(f"candidate_pool must be a number of tokens, or 0 for all, got {self.candidate_pool!r}.")
        if not _whole(self.prefill_chunk, 1):
            raise ValueError(f"prefill_chunk must be a positive number of tokens, got {self.prefill_chunk!r}.")
        if self.draft_window is not None and not _whole(self.draft_window, 1):
            raise ValueError(f"draft_window must be a positive number of tokens, got {self.draft_window!r}.")


# What was learnt about a drafter and a target, greedy and sampling apart; it holds neither of them.
_learnt: WeakKeyDictionary = WeakKeyDictionary()


def learnt(draft, target, *kind) -> VerifyLength:
    """What earlier calls of this kind with these models learnt of speed and acceptance."""
    kinds = _learnt.setdefault(draft, WeakKeyDictionary()).setdefault(target, {})
    return kinds.setdefault((kind, torch.get_num_threads()), VerifyLength())


class Engine:
    """A target and its drafter.

    Args:
        target: the model that verifies. draft: its `DominoModel`. settings: see `EngineSettings`.
    """

    def __init__(self, target, draft, settings: EngineSettings):
        check_target(draft, target)
        self.target, self.draft, self.settings = target, draft, settings

    @torch.no_grad()
    def decode(
        self,
        input_ids: Tensor,
        logits_processor,
        stopping_criteria,
        generation_config,
        streamer=None,
        on_tokens: Callable[[int, list[int]], None] | None = None,
        **model_kwargs,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """The loop, as `generate` calls it.

        Args:
            input_ids: [R, P], padded on the left where `attention_mask` is 0. streamer: for one row.
            on_tokens: told (row, new tokens) after every round.

        Returns:
            ids [R, longest], padded on the right, or a `GenerateDecoderOnlyOutput`. The counts of each row are in
            `draft.row_statistics`, all together in `draft.statistics`.

        Raises:
            `ValueError`: something the engine cannot do, named (`checks.check_engine`).
        """
        check_engine(self.target, input_ids, logits_processor, generation_config, streamer, model_kwargs)
        mask = model_kwargs.get("attention_mask")
        mask = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
        if streamer is not None:
            streamer.put(input_ids.cpu())
        rows = Rows(input_ids, mask, generation_config.max_length, stopping_criteria, _telling(streamer, on_tokens))
        call = Call(self, rows, Processing(logits_processor, len(input_ids)), generation_config)
        call.run()
        if streamer is not None:
            streamer.end()
        self.draft.row_statistics = rows.statistics
        self.draft.statistics = DraftStatistics(
            [n for row in rows.statistics for n in row.accepted], [n for row in rows.statistics for n in row.drafted]
        )
        pad = generation_config._pad_token_tensor
        sequences = rows.output(None if pad is None else int(pad))
        if not generation_config.return_dict_in_generate:
            return sequences
        return GenerateDecoderOnlyOutput(sequences=sequences)


def _telling(streamer, on_tokens):
    if streamer is None:
        return on_tokens

    def tell(row: int, tokens: list[int]) -> None:
        streamer.put(torch.tensor(tokens))
        if on_tokens is not None:
            on_tokens(row, tokens)

    return tell


class Call:
    """One call of `Engine.decode`: prefill, then rounds of draft, verify, accept, commit."""

    def __init__(self, engine: Engine, rows: Rows, processing: Processing, generation_config):
        self.rows, self.processing, self.settings = rows, processing, engine.settings
        self.samples = bool(generation_config.do_sample)
        self.length = learnt(engine.draft, engine.target, self.samples, self.settings.compile, self.settings.pack)
        limit = generation_config.num_assistant_tokens
        most = engine.draft.config.num_drafts
        self.max_drafts = most if limit is None else min(most, limit)
        if self.settings.verify_length != "auto":
            self.max_drafts = min(self.max_drafts, self.settings.verify_length)
        count = len(rows.prompts)
        layers, chunk = engine.draft.config.target_layer_ids, self.settings.prefill_chunk
        static = generation_config.max_length + most + 1 if generation_config.cache_implementation == "static" else None
        compiled, window = self.settings.compile, self.settings.draft_window
        device = rows.input_ids.device
        self.graphs = self._graphs(engine.target, engine.draft) if self.settings.graphs else None
        packs = self.settings.pack and not compiled  # the compiler packs by itself
        target, draft = decoding_view(engine.target, packs), decoding_view(engine.draft, packs)
        self.target = RowTarget(target, layers, count, rows.max_length, static, chunk, compiled, device, self.graphs)
        run = compile_forward(draft) if compiled else None
        self.draft = RowDraft(draft, target, count, device, window, run, self.graphs)
        self.plan = plan_for(processing.processors, self.draft.embedding, self.samples)
        # Times are only the work's own where the host waits for it.
        self.timed = self.target.device.type == "cpu" and self.graphs is None

    @staticmethod
    def _graphs(*models) -> Graphs | None:
        devices = {tensor.device for model in models for tensor in model.parameters()}
        record = (
            recorder(models[0].device) if len(devices) == 1 else None
        )  # of another device nothing would be recorded
        if record is None:
            named = ", ".join(sorted(map(str, devices)))
            logger.warning("graphs=True is for models on one CUDA device; on %s the call goes on without.", named)
        return record and Graphs(record)

    def run(self) -> None:
        """Until every row has ended."""
        if self.rows.input_ids.shape[1] >= self.rows.max_length:
            return
        self._prefill()
        while self._compact():
            self._round()

    def _prefill(self) -> None:
        lengths = [len(prompt) for prompt in self.rows.prompts]
        first: dict[int, Tensor] = {}
        start, longest = 0, max(lengths)
        for features, ended in self.target.prefill(self.rows.prompts):
            end = start + features.shape[1]
            counts = [min(max(length - start, 0), features.shape[1]) for length in lengths]
            # The last chunk is read together with the first block, but for a recorded block, whose shape is that of all others.
            together = end >= longest and self.graphs is None
            (self.draft.add if together else self.draft.read)(features, counts)
            first |= ended
            start = end
        logits = torch.stack([first[row] for row in range(len(lengths))])
        none = self.rows.input_ids[:, :0]
        token = self.pick(self._wide(logits[:, None], none, [0] * len(lengths))[:, 0])
        self.rows.say([[t] for t in token[:, 0].tolist()])

    def _compact(self) -> bool:
        """Rows that have ended leave the batch. Returns whether any is left."""
        before = len(self.rows.alive)
        stay = self.rows.leave()
        if stay and len(stay) < before:
            self.target.cache.keep(stay)
            self.draft.keep(stay)
            if self.graphs:
                self.graphs.forget()
        return bool(stay)

    def _round(self) -> None:
        rows, anchors = self.rows, self.rows.anchors()
        most = [min(self.max_drafts, room - 1) for room in rows.room()]  # the bonus token needs a place too
        drafts, q, confidences = self._drafts(anchors, most)
        counts = [min(drafts.shape[1], n) for n in most]

        began = time.perf_counter()
        logits, features = self.target.verify(torch.cat([anchors, drafts], dim=1))
        if self.timed:
            self.length.at(len(most)).saw_verify(drafts.shape[1] + 1, time.perf_counter() - began)
        said = drafts.tolist()
        kept, following = self._accept(self._wide(logits, drafts, counts), q, drafts, said, counts)
        rows.say([said[r][: kept[r]] + [following[r]] for r in range(len(kept))])
        self.target.cache.lengths = [n + k + 1 for n, k in zip(self.target.cache.lengths, kept, strict=True)]
        if self.max_drafts:
            columns = features.shape[1] if self.graphs else max(kept) + 1  # a recorded block reads always as many
            self.draft.add(features[:, :columns], [k + 1 for k in kept])
        for place, row in enumerate(rows.alive):
            rows.statistics[row].accepted.append(kept[place])
            rows.statistics[row].drafted.append(counts[place])
            self.length.calibration.observe([c[place] for c in confidences[: counts[place]]], kept[place])

    def _drafts(self, anchors: Tensor, most: list[int]) -> tuple[Tensor, Tensor | None, list[list[float]]]:
        """Drafts [R, n] with n as pays, the q they were sampled from, and the largest probability at each, n lists of R."""
        wanted = self.max_drafts if self.graphs else max(most)
        adaptive = self.settings.verify_length == "auto" and self.timed
        if adaptive:
            drafting = self.length.worth(len(most)).drafts_now()
            probe = self.length.unknown(len(most), self.max_drafts) if drafting else 0
            if probe is not None:
                wanted, adaptive = min(wanted, probe), False
        if wanted == 0:
            return anchors[:, :0], None, []
        picker = Picker(self, most, adaptive)
        began = time.perf_counter()
        drafts, q = self.draft.draft_block(anchors, wanted, picker, self.settings.candidate_pool)
        if self.timed:
            picker.note(began, time.perf_counter())
        if picker.round is not None:
            self.length.judge(picker.round, len(most))
        return drafts, q if self.samples else None, picker.confidences()

    def places(self, drafts: Tensor, counts: list[int]) -> list[int]:
        """Places of each row that can matter: none after an end token, where processors may have nothing to say."""
        found = []
        for said, count in zip(drafts.tolist(), counts, strict=True):
            ends = (place for place, token in enumerate(said) if token in self.rows.eos)
            found.append(min(count, next(ends, count)) + 1)
        return found

    def _wide(self, logits: Tensor, drafts: Tensor, counts: list[int]) -> Tensor:
        """The target's logits, processed in at least float32 where the texts are."""
        logits = logits.to(self.rows.input_ids.device)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return self.processed(wide, drafts, counts)

    def processed(self, logits: Tensor, drafts: Tensor, counts: list[int], first: int = 0) -> Tensor:
        """Logits [R, k, V] after the first `first`, `first` + 1, … drafts as processed; γ `counts` say which places matter."""
        if not self.processing.processors:
            return logits
        wanted = [min(max(places - first, 0), logits.shape[1]) for places in self.places(drafts, counts)]
        return self.processing(logits, self.rows.texts(), drafts, wanted, first)

    def pick(self, logits: Tensor) -> Tensor:
        """A token [R, 1] from processed logits [R, V]."""
        return torch.multinomial(logits.softmax(-1), 1) if self.samples else likeliest(logits)[:, None]

    def _accept(
        self, logits: Tensor, q: Tensor | None, drafts: Tensor, said: list[list[int]], counts: list[int]
    ) -> tuple[list[int], list[int]]:
        """How many drafts each row keeps, and the token that follows them; `said` are the drafts on the host."""
        if not self.samples:
            return greedy(likeliest(logits).tolist(), said, counts)
        p = logits.softmax(-1)
        if drafts.shape[1] == 0:
            return [0] * len(said), torch.multinomial(p[:, 0], 1)[:, 0].tolist()
        rule = RULES[self.settings.accept]
        accepted, token = rule(p, q.softmax(-1), drafts, torch.tensor(counts, device=drafts.device))
        return accepted.tolist(), token.tolist()


class Picker:
    """Picks drafts for `rollout`, and stops it where the next draft does not pay.

    Args:
        most: drafts each row has room for. adaptive: whether to stop; else all drafts that are asked for are made.
    """

    def __init__(self, call: Call, most: list[int], adaptive: bool):
        self.call, self.most = call, most
        self.round = Round(call.length.calibration, call.length.at(len(most)), most) if adaptive else None
        # What reads the logits alone may be shown a pool's. A rollout in one launch tells neither times nor probabilities.
        self.compact, self.samples = call.plan is not None, call.samples
        self.plan = None if call.timed and call.settings.verify_length == "auto" else call.plan
        self.tops: list[Tensor] = []
        self.times: list[float] = []

    def __call__(self, logits: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor] | None:
        self.times.append(time.perf_counter())
        call = self.call
        logits = call.processed(logits[:, None], drafts, self.most, first=drafts.shape[1])[:, 0]
        top = (logits.amax(dim=-1) - logits.logsumexp(dim=-1)).exp()
        if self.round is not None and not self.round.pays(top.tolist()):
            return None
        if (
            call.samples
        ):  # processors may forbid the whole pool, or the drafter overflow: any q will do, so long as it is one
            logits = torch.where(top.isnan()[:, None], 0.0, logits)
        self.tops.append(top)
        return call.pick(logits), logits

    def confidences(self) -> list[list[float]]:
        return torch.stack(self.tops).tolist() if self.tops else []

    def note(self, began: float, ended: float) -> None:
        """Tell what the block and each step cost. The first pick ends the block; a pick to the next one is a step."""
        if not self.times:
            return
        costs = self.call.length.at(len(self.call.rows.alive))
        costs.block.append(self.times[0] - began)
        steps = len(self.tops)
        if steps:
            costs.step.append((ended - self.times[0]) / steps)


def generate(target, draft, inputs=None, *, streamer=None, tokenizer=None, stop_strings=None, **kwargs):
    """`target.generate` through the engine: any number of rows, with every argument of `generate`.

    Args:
        target: the model. draft: its `DominoModel`. inputs, kwargs: of `generate`, and the fields of `EngineSettings`, and
            `on_tokens`, told (row, new tokens) after every round.

    Returns:
        as `generate`.
    """
    config = kwargs.get("generation_config")
    if stop_strings is None and config is not None and config.stop_strings is not None:
        stop_strings, kwargs["generation_config"] = config.stop_strings, copy.deepcopy(config)
        kwargs["generation_config"].stop_strings = None
    if stop_strings is not None:  # transformers gives a custom loop no tokenizer, so the criterion is built here
        criteria = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
        criteria.append(StopStringCriteria(stop_strings=stop_strings, tokenizer=tokenizer))
        kwargs["stopping_criteria"] = criteria
    return target.generate(inputs, custom_generate=draft.decode_rows, drafter_streamer=streamer, **kwargs)
