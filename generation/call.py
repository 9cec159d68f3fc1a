"""One call of the engine: the prompts are read, then rounds of draft, verify, accept, commit."""

import time

import torch
from torch import Tensor
from transformers import GenerationConfig

from .. drafting.proposal import Proposal  # fmt: skip  # isort: skip
from . choosing import Choosing  # fmt: skip  # isort: skip
from . handing_back import HandingBack  # fmt: skip  # isort: skip
from . learnt import Learnt  # fmt: skip  # isort: skip
from . opening import open_sides  # fmt: skip  # isort: skip
from . proposing import Proposer  # fmt: skip  # isort: skip
from . request import Request  # fmt: skip  # isort: skip
from . sequences import Rows  # fmt: skip  # isort: skip
from . statistics import Round  # fmt: skip  # isort: skip


class Call:
    """One call of `Engine.decode`.

    Args:
        request: what it is asked for. known: what earlier calls learnt.
    """

    def __init__(self, request: Request, known: Learnt) -> None:
        self.rows, self.past, self.outputs = request.rows, request.past, request.outputs
        self.on_round, self.choosing = request.on_round, Choosing(request)
        # what earlier calls taught would bend the draws: with a fixed budget a seed repeats a text
        repeats = self.choosing.samples and not self.choosing.shares and request.settings.budget != "auto"
        learnt = Learnt(memory=known.memory) if repeats else known
        self.sides = open_sides(request)
        self.target, self.session, self.graphs = self.sides.target, self.sides.session, self.sides.graphs
        self.back = HandingBack(request, self.sides)
        picking = self.choosing.picking(self.target.target.get_input_embeddings())
        self.proposer = Proposer(request.settings, self.rows, self.sides, learnt, picking, _limit(request.config))

    def run(self) -> None:
        """Until every row has ended."""
        if self.rows.input_ids.shape[1] >= self.rows.max_length:
            return
        self._prefill()
        while self._compact():
            self._round()
        self.proposer.remember()
        self.choosing.settle()
        self.back.finish(drafted=self.proposer.drafter)

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
        scores = self.choosing.process(raw, [[[]] for _ in lengths])
        token = self.choosing.first(scores[:, 0])
        self.outputs.say(self.rows.alive, [[0]] * len(lengths), raw, scores)
        self.rows.say([[t] for t in token])

    def _compact(self) -> bool:
        """Rows that have ended leave the batch. Returns whether any is left."""
        before = list(self.rows.alive)
        stay = self.rows.leave()
        self.back.leave(before, stay)
        if stay and len(stay) < len(before):
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
        if self.sides.timed:
            self.proposer.budget.costs.saw(proposal.width, time.perf_counter() - began)
        raw = _wide(logits, self.rows)
        scores = self.choosing.scores(raw, proposal)
        paths, following = self.choosing.accept(scores, proposal)
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


def _limit(generation_config: GenerationConfig) -> int | None:
    """`num_assistant_tokens` where the caller set it: transformers fills in its own default, which was made for draft models."""
    usual = GenerationConfig._get_default_generation_params().get("num_assistant_tokens")
    given = generation_config.num_assistant_tokens
    return None if given == usual else given


def _wide(logits: Tensor, rows: Rows) -> Tensor:
    """The target's logits in float32, where the texts are: plain `generate` chooses among those, whatever the target's dtype."""
    return logits.to(rows.input_ids.device, torch.float32)
