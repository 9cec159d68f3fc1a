"""The engine: our own decode loop, for any number of rows.

It keeps the semantics of `generate` (processors, stopping, streaming, output) and has none of the limits of transformers' assisted
loop: rows may be many and ragged, drafts may end the text and branch, and their number follows what pays.
"""

import copy
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, StoppingCriteriaList
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria

from .. acceleration.graphs import Graphs, recorder  # fmt: skip  # isort: skip
from .. acceleration.invariance import is_invariant  # fmt: skip  # isort: skip
from .. acceleration.view import decoding_view  # fmt: skip  # isort: skip
from .. drafting.calibration import Calibration  # fmt: skip  # isort: skip
from .. drafting.drafter import Picking  # fmt: skip  # isort: skip
from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. drafting.lookup import Memory  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal  # fmt: skip  # isort: skip
from .. verification.accept import RULES  # fmt: skip  # isort: skip
from .. verification.target import RowTarget, compile_forward  # fmt: skip  # isort: skip
from .. verification.verdict import accept_greedy, accept_sampled, likeliest  # fmt: skip  # isort: skip
from . budget import Budget, Costs  # fmt: skip  # isort: skip
from . checks import check_engine, check_target  # fmt: skip  # isort: skip
from . processing import Processing  # fmt: skip  # isort: skip
from . proposing import Proposer  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . settings import COLD, MOST, EngineSettings  # fmt: skip  # isort: skip
from . statistics import DraftStatistics, Round  # fmt: skip  # isort: skip

logger = logging.getLogger(__name__)


@dataclass
class Learnt:
    """What earlier calls of one kind learnt about a drafter and a target; budgets by about their number of rows."""

    calibration: Calibration = field(default_factory=Calibration)
    budgets: dict[int, Budget] = field(default_factory=dict)
    memory: Memory = field(default_factory=Memory)

    def budget(self, rows: int) -> Budget:
        """5, 6, 7 and 8 rows share theirs."""
        about = 1 << (rows - 1).bit_length()
        return self.budgets.setdefault(about, Budget(Costs(about)))


# It holds neither of the models.
_learnt: WeakKeyDictionary = WeakKeyDictionary()


def learnt(draft, target, *kind) -> Learnt:
    """What earlier calls of this kind with these models learnt; greedy and sampling, say, are apart, and chains and trees."""
    kinds = _learnt.setdefault(draft, WeakKeyDictionary()).setdefault(target, {})
    return kinds.setdefault((kind, torch.get_num_threads()), Learnt())


class Engine:
    """A target and its drafter.

    Args:
        target: the model that verifies. draft: a `DrafterModel`. settings: see `EngineSettings`.
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
        on_round: Callable[[int, Round], None] | None = None,
        **model_kwargs,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        """The loop, as `generate` calls it.

        Args:
            input_ids: [R, P], padded on the left where `attention_mask` is 0. streamer: for one row.
            on_tokens: told (row, new tokens) after every round. on_round: told (row, `Round`) before that.

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
        Call(self, rows, Processing(logits_processor, len(input_ids)), generation_config, on_round).run()
        if streamer is not None:
            streamer.end()
        self.draft.row_statistics = rows.statistics
        self.draft.statistics = DraftStatistics.together(rows.statistics)
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

    def __init__(self, engine: Engine, rows: Rows, processing: Processing, generation_config, on_round):
        self.rows, self.processing, self.settings, self.on_round = rows, processing, engine.settings, on_round
        self.samples = bool(generation_config.do_sample)
        draws = _draws(self.settings, generation_config)
        # nodes that were chosen need no q, and none of their rules keeps more than the walk
        self.rule = RULES[self.settings.accept if draws else "walk"]
        # what a chain brings says nothing of what a tree would
        kind = self.samples, draws, self.settings.shape, self.settings.lookup, self.settings.compile, self.settings.pack
        kept = learnt(engine.draft, engine.target, *kind)
        # what earlier calls taught would bend the draws: with a fixed budget a seed repeats a text
        repeats = self.samples and self.settings.budget != "auto"
        self.learnt = Learnt(memory=kept.memory) if repeats else kept
        self._open(engine, generation_config)
        plan = plan_for(processing.processors, self.target.target.get_input_embeddings(), draws)
        process = self._process if processing.processors else None
        picking = Picking(draws, process, processing.blind, ends=frozenset(rows.eos), plan=plan)
        self.proposer = Proposer(self, picking, _limit(generation_config))

    def _open(self, engine: Engine, generation_config) -> None:
        """The views, caches and recordings of this call."""
        settings, rows = self.settings, self.rows
        count, device, drafts = len(rows.prompts), rows.input_ids.device, engine.draft.config.num_drafts
        layers, chunk = engine.draft.config.target_layer_ids, settings.prefill_chunk
        longest = generation_config.max_length + MOST + 1
        static = longest if generation_config.cache_implementation == "static" else None
        self.graphs = self._graphs(engine.target, engine.draft) if settings.graphs else None
        packs = settings.pack and not settings.compile  # the compiler packs by itself
        invariant = settings.invariant and is_invariant(engine.target, packs, settings.compile)
        target, draft = decoding_view(engine.target, packs, invariant), decoding_view(engine.draft, packs)
        self.target = RowTarget(
            target, layers, count, rows.max_length, static, chunk, settings.compile, device, self.graphs, invariant
        )
        run = compile_forward(draft) if settings.compile else None
        self.session = draft.open(
            target, count, device, settings.draft_window, run, self.graphs, settings.candidate_pool
        )
        self.max_depth = drafts
        # Times are only the work's own where the host waits for it.
        self.timed = self.target.device.type == "cpu" and self.graphs is None

    @staticmethod
    def _graphs(*models) -> Graphs | None:
        devices = {tensor.device for model in models for tensor in model.parameters()}
        # of another device nothing would be recorded
        record = recorder(models[0].device) if len(devices) == 1 else None
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
        self.proposer.remember()

    def _prefill(self) -> None:
        lengths = [len(prompt) for prompt in self.rows.prompts]
        first: dict[int, Tensor] = {}
        start, longest = 0, max(lengths)
        for features, ended in self.target.prefill(self.rows.prompts):
            end = start + features.shape[1]
            counts = [min(max(length - start, 0), features.shape[1]) for length in lengths]
            # The last chunk is read together with the first block, but for a recorded block, whose shape is that of all others.
            together = end >= longest and self.graphs is None
            if self.proposer.drafter:
                (self.session.add if together else self.session.read)(features, counts)
            first |= ended
            start = end
        logits = _wide(torch.stack([first[row] for row in range(len(lengths))])[:, None], self.rows)
        logits = self._process(logits, [[[]] for _ in lengths])[:, 0]
        token = torch.multinomial(logits.softmax(-1), 1)[:, 0] if self.samples else likeliest(logits)
        self.rows.say([[t] for t in token.tolist()])

    def _compact(self) -> bool:
        """Rows that have ended leave the batch. Returns whether any is left."""
        before = len(self.rows.alive)
        stay = self.rows.leave()
        if stay and len(stay) < before:
            self.target.cache.keep(stay)
            self.session.keep(stay)
            if self.graphs:
                self.graphs.forget()
        return bool(stay)

    def _round(self) -> None:
        anchors, room = self.rows.anchors(), self.rows.room()
        # the token that follows needs a place too
        proposal = self.proposer.propose(anchors, [left - 1 for left in room])
        began = time.perf_counter()
        logits, features = self.target.verify(anchors, proposal)
        if self.timed:
            self.proposer.budget.costs.saw(proposal.width, time.perf_counter() - began)
        paths, following = self._accept(_wide(logits, self.rows), proposal)
        said = [
            [tree.tokens[node] for node in path] + [token]
            for tree, path, token in zip(proposal.trees, paths, following, strict=True)
        ]
        self._tell(proposal, paths, said)
        self.rows.say(said)
        self.target.commit(paths)
        if self.proposer.drafter:
            self.session.add(self._along(features, paths), [len(path) + 1 for path in paths])
        self.proposer.observe(paths, said)

    def _tell(self, proposal: Proposal, paths: list[list[int]], said: list[list[int]]) -> None:
        for row, tree, path, tokens in zip(self.rows.alive, proposal.trees, paths, said, strict=True):
            self.rows.statistics[row].note(tree, path)
            if self.on_round is not None:
                self.on_round(row, Round(tree, path, tokens))

    def _along(self, features: Tensor, paths: list[list[int]]) -> Tensor:
        """Features [R, n + 1, F] of the anchor and a path of nodes, padded; a recorded block reads always as many."""
        columns = features.shape[1] if self.graphs else max(map(len, paths)) + 1
        if all(path == list(range(len(path))) for path in paths):
            return features[:, :columns]
        slots = [[0, *(node + 1 for node in path)] + [0] * (columns - 1 - len(path)) for path in paths]
        at = torch.tensor(slots, device=features.device)
        return features.gather(1, at[..., None].expand(-1, -1, features.shape[2]))

    def _process(self, logits: Tensor, paths: list[list[list[int] | None]]) -> Tensor:
        return self.processing(logits, self.rows.texts(), paths)

    def _accept(self, logits: Tensor, proposal: Proposal) -> tuple[list[list[int]], list[int]]:
        """What each row keeps, and the token that follows."""
        if self.processing.processors:
            logits = self._process(logits, [_places(tree, self.rows.eos) for tree in proposal.trees])
        return accept_sampled(logits, proposal, self.rule) if self.samples else accept_greedy(logits, proposal)


def _draws(settings: EngineSettings, generation_config) -> bool:
    """Whether the drafter's nodes are drawn from its q."""
    if not generation_config.do_sample or settings.draws == "chosen" or settings.accept == "walk":
        return False
    cold = generation_config.temperature is not None and generation_config.temperature < COLD
    return settings.draws == "sampled" or not cold


def _limit(generation_config) -> int | None:
    """`num_assistant_tokens` where the caller set it: transformers fills in its own default, which was made for draft models."""
    usual = GenerationConfig._get_default_generation_params().get("num_assistant_tokens")
    given = generation_config.num_assistant_tokens
    return None if given == usual else given


def _wide(logits: Tensor, rows: Rows) -> Tensor:
    """The target's logits in at least float32, where the texts are."""
    logits = logits.to(rows.input_ids.device)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _places(tree, ends: set[int]) -> list[list[int] | None]:
    """What stands above each slot; None after an end token, where processors may have nothing to say."""
    paths: list[list[int] | None] = [[]]
    for parent, token in zip(tree.parents, tree.tokens, strict=True):
        above = paths[parent + 1]
        paths.append(None if above is None or token in ends else [*above, token])
    return paths


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
