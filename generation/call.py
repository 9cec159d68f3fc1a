"""One call of the engine: the prompts are read, then rounds of draft, verify, accept, commit."""

import time
from dataclasses import replace

import torch
from torch import Tensor
from transformers import GenerationConfig

from .. acceleration.graphs import graphs_for  # fmt: skip  # isort: skip
from .. acceleration.view import decoding_view  # fmt: skip  # isort: skip
from .. drafting.drafter import Picking  # fmt: skip  # isort: skip
from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal  # fmt: skip  # isort: skip
from .. verification.accept import RULES  # fmt: skip  # isort: skip
from .. verification.target import RowTarget, compile_forward  # fmt: skip  # isort: skip
from .. verification.verdict import accept_greedy, accept_sampled, accept_shared, likeliest  # fmt: skip  # isort: skip
from . learnt import Learnt  # fmt: skip  # isort: skip
from . noise import Noise, draw  # fmt: skip  # isort: skip
from . outputs import Outputs  # fmt: skip  # isort: skip
from . past import Past, read_last  # fmt: skip  # isort: skip
from . processing import Processing  # fmt: skip  # isort: skip
from . proposing import Proposer  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . settings import MOST, EngineSettings  # fmt: skip  # isort: skip
from . statistics import Round  # fmt: skip  # isort: skip


class Call:
    """One call of `Engine.decode`.

    Args:
        target, draft: the models. settings: see there. rows: the texts. processing: of their logits. generation_config: of the call.
        on_round: told of every round. past: the cache it continues. outputs: what it returns besides the texts. known: what
            earlier calls learnt.
    """

    def __init__(
        self,
        target,
        draft,
        settings: EngineSettings,
        rows: Rows,
        processing: Processing,
        generation_config,
        on_round,
        past: Past,
        outputs: Outputs,
        known: Learnt,
    ) -> None:
        self.rows, self.processing, self.on_round = rows, processing, on_round
        self.whole, self.draft, self.past, self.outputs = target, draft, past, outputs
        # what happens inside the target does not come out of a recording, nor of a compiled forward
        self.settings = replace(settings, graphs=False, compile=False) if outputs.inside else settings
        self.samples = bool(generation_config.do_sample)
        draws = draws_nodes(self.settings, generation_config)
        self.noise = self._noise() if self.samples and self.settings.draws == "shared" else None
        # nodes that were chosen need no q, and none of their rules keeps more than the walk
        self.rule = RULES[self.settings.accept if draws else "walk"]
        # what earlier calls taught would bend the draws: with a fixed budget a seed repeats a text
        repeats = self.samples and self.noise is None and self.settings.budget != "auto"
        self.learnt = Learnt(memory=known.memory) if repeats else known
        # a cache that the caller will see
        self.keeps = past.cache is not None and (outputs.returns or getattr(past.cache, "_is_user_defined", False))
        self.gone: dict[int, list] = {}  # keys and values of rows that have left
        self._open(generation_config)
        table = self.target.target.get_input_embeddings()
        plan = plan_for(processing.processors, table, draws) if self.noise is None else None
        process = self._process if processing.processors else None
        noise = None if self.noise is None else self._noise_of_nodes
        picking = Picking(draws, process, processing.blind, ends=frozenset(rows.eos), plan=plan, noise=noise)
        self.proposer = Proposer(self, picking, _limit(generation_config))

    def _open(self, generation_config) -> None:
        """The views, caches and recordings of this call."""
        settings, rows, past = self.settings, self.rows, self.past
        count, device, drafts = len(rows.prompts), rows.input_ids.device, self.draft.config.num_drafts
        longest = rows.max_length + past.outside
        static = longest + MOST + 1 if generation_config.cache_implementation == "static" else None
        usual = settings.shape != "tree" and not settings.compile and not past.cached
        self.graphs = graphs_for(settings.graphs, usual, self.whole, self.draft)
        packs = settings.pack and not settings.compile  # the compiler packs by itself
        invariant = settings.invariant and not settings.compile  # the compiler orders sums as it likes
        target, draft = decoding_view(self.whole, packs, invariant), decoding_view(self.draft, packs)
        self.target = RowTarget(
            target,
            self.draft.config.target_layer_ids,
            count,
            longest,
            static,
            generation_config.prefill_chunk_size or settings.prefill_chunk,
            settings.compile,
            device,
            self.graphs,
            states=self.outputs.hidden_states is not None,
            attentions=self.outputs.attentions is not None,
        )
        past.load(self.target.cache)
        run = compile_forward(draft) if settings.compile else None
        context = self.draft.context_of(past.cache, None if past.outside else rows.input_ids) if count == 1 else None
        self.session = draft.open(
            target, count, device, settings.draft_window, run, self.graphs, settings.candidate_pool, context
        )
        if past.cached:
            self.session.continue_at(past.lengths)
        self.max_depth = drafts
        # Times are only the work's own where the host waits for it.
        self.timed = self.target.device.type == "cpu" and self.graphs is None

    def _noise(self) -> Noise:
        ids, vocab = self.rows.input_ids, self.whole.get_output_embeddings().weight.shape[0]
        return Noise(len(ids), vocab, ids.device)

    def run(self) -> None:
        """Until every row has ended."""
        if self.rows.input_ids.shape[1] >= self.rows.max_length:
            return
        self._prefill()
        while self._compact():
            self._round()
        self.proposer.remember()
        if self.noise is not None:
            self.noise.settle(max(self.rows.ends) - self.rows.input_ids.shape[1])
        if self.keeps:
            self._give_back()

    def _prefill(self) -> None:
        unread = self.past.unread(self.rows.input_ids)
        lengths = list(map(len, unread))
        first: dict[int, Tensor] = {}
        start, longest = 0, max(lengths)
        for features, ended in self.target.prefill(unread):
            end = start + features.shape[1]
            counts = [min(max(length - start, 0), features.shape[1]) for length in lengths]
            # The last chunk is read together with the first block, but for a recorded block, whose shape is that of all others.
            together = end >= longest and self.graphs is None
            if self.proposer.drafter:
                (self.session.add if together else self.session.read)(features, counts)
            self.outputs.read(self.target.seen)
            first |= ended
            start = end
        raw = _wide(torch.stack([first[row] for row in range(len(lengths))])[:, None], self.rows)
        scores = self._process(raw, [[[]] for _ in lengths])
        token = self._first(scores[:, 0])
        self.outputs.say(self.rows.alive, [[0]] * len(lengths), raw, scores)
        self.rows.say([[t] for t in token])

    def _compact(self) -> bool:
        """Rows that have ended leave the batch. Returns whether any is left."""
        before = list(self.rows.alive)
        stay = self.rows.leave()
        if self.keeps:
            for place in set(range(len(before))) - set(stay):
                self.gone[before[place]] = self.target.cache.row(place, self._read_of(before[place]))
        if stay and len(stay) < len(before):
            self.target.cache.keep(stay)
            self.session.keep(stay)
            if self.graphs:
                self.graphs.forget()
        return bool(stay)

    def _read_of(self, row: int) -> int:
        """Tokens of a row that plain `generate` would have read: all but the last."""
        said = self.rows.ends[row] - self.rows.input_ids.shape[1]
        return int(self.past.mask[row].sum()) + said - 1

    def _give_back(self) -> None:
        """The caller's cache gets what was read, and with it what the drafter made of it."""
        for row, end in enumerate(self.rows.ends):
            if end < max(self.rows.ends):
                last = self.rows.text[row, end - 1 : end].to(self.target.device)
                self.gone[row] = read_last(self.target.target, self.gone[row], last)
        self.past.give_back([self.gone[row] for row in sorted(self.gone)], self.past.outside + max(self.rows.ends) - 1)
        if len(self.gone) > 1 or not self.proposer.drafter:
            return
        self.session.flush()
        context, read = self.session.cache, self._read_of(0)
        context.lengths = [min(context.lengths[0], read - context.gaps[0])]
        context.verified_ids = None if self.past.outside else self.rows.text[:, : self.rows.ends[0] - 1]
        self.draft.keep_context(self.past.cache, context)

    def _round(self) -> None:
        anchors, room = self.rows.anchors(), self.rows.room()
        # the token that follows needs a place too
        proposal = self.proposer.propose(anchors, [left - 1 for left in room])
        began = time.perf_counter()
        logits, features = self.target.verify(anchors, proposal)
        if self.timed:
            self.proposer.budget.costs.saw(proposal.width, time.perf_counter() - began)
        raw = _wide(logits, self.rows)
        scores = self._scores(raw, proposal)
        paths, following = self._accept(scores, proposal)
        said = [
            [tree.tokens[node] for node in path] + [token]
            for tree, path, token in zip(proposal.trees, paths, following, strict=True)
        ]
        self._tell(proposal, paths, said)
        alive, taken = list(self.rows.alive), self.rows.say(said)
        slots = [[0, *(node + 1 for node in path)][:count] for path, count in zip(paths, taken, strict=True)]
        self.outputs.say(alive, slots, raw, scores)
        if self.outputs.inside:
            places = [self.target.places(row, kept) for row, kept in enumerate(slots)]
            self.outputs.verified(alive, slots, places, self.target.seen)
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

    def _accept(self, scores: Tensor, proposal: Proposal) -> tuple[list[list[int]], list[int]]:
        """What each row keeps, and the token that follows."""
        if not self.samples:
            return accept_greedy(scores, proposal)
        if self.noise is None:
            return accept_sampled(scores, proposal, self.rule)
        said = self.rows.said()
        self.noise.forget(min(said))
        alive, noise = self.rows.alive, self.noise
        return accept_shared(
            scores, proposal, lambda row, depth, logits: draw(logits, noise.row(alive[row], said[row] + depth))
        )

    def _first(self, scores: Tensor) -> list[int]:
        """The tokens that follow the prompts."""
        if not self.samples:
            return likeliest(scores).tolist()
        if self.noise is None:
            return torch.multinomial(scores.softmax(-1), 1)[:, 0].tolist()
        return [draw(scores[row], self.noise.row(row, 0)) for row in range(len(scores))]

    def _noise_of_nodes(self, depth: int, ids: Tensor | None) -> Tensor:
        """[R, m] of the tokens [R, m] at this depth, see `drafter.Noise`."""
        said = zip(self.rows.alive, self.rows.said(), strict=True)
        each = [self.noise.row(row, before + depth - 1) for row, before in said]
        if ids is not None:
            each = [own[at.to(own.device)] for own, at in zip(each, ids, strict=True)]
        return torch.stack(each)

    def _scores(self, logits: Tensor, proposal: Proposal) -> Tensor:
        """Processed logits of each slot."""
        if not self.processing.processors:
            return logits
        return self._process(logits, [_places(tree, self.rows.eos) for tree in proposal.trees])


def draws_nodes(settings: EngineSettings, generation_config) -> bool:
    """Whether the drafter's nodes are drawn from its q."""
    return bool(generation_config.do_sample) and settings.draws == "sampled" and settings.accept != "walk"


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
