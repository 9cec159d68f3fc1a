"""From the target's logits to the tokens of a call: the likeliest, or drawn, with the drafter's nodes kept by the rule that fits."""

import torch
from torch import Tensor
from transformers import GenerationConfig

from .. drafting.drafter import Picking  # fmt: skip  # isort: skip
from .. drafting.fused_chain import plan_for  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal, Tree  # fmt: skip  # isort: skip
from .. verification.accept import RULES  # fmt: skip  # isort: skip
from .. verification.verdict import Kept, accept_greedy, accept_sampled, accept_shared, likeliest  # fmt: skip  # isort: skip
from . noise import Noise, draw  # fmt: skip  # isort: skip
from . request import Request  # fmt: skip  # isort: skip
from . settings import EngineSettings  # fmt: skip  # isort: skip


class Choosing:
    """How one call chooses its tokens.

    Args:
        request: of the call.
    """

    def __init__(self, request: Request) -> None:
        settings, config = request.settings, request.config
        self.rows, self.processing = request.rows, request.processing
        self.samples, self.draws = bool(config.do_sample), draws_nodes(settings, config)
        self.shares = self.samples and settings.draws == "shared"
        self.noise: Noise | None = None  # from the first tokens on
        # nodes that were chosen need no q, and none of their rules keeps more than the walk
        self.rule = RULES[settings.accept if self.draws else "walk"]

    def picking(self, embedding: torch.nn.Module) -> Picking:
        """How the drafter picks its nodes; embedding: the target's."""
        processors = self.processing.processors
        plan = plan_for(processors, embedding, self.draws) if not self.shares else None
        process = self.process if processors else None
        noise = self._noise_of_nodes if self.shares else None
        return Picking(
            self.draws, process, self.processing.blind, ends=frozenset(self.rows.eos), plan=plan, noise=noise
        )

    def process(self, logits: Tensor, paths: list[list[list[int] | None]]) -> Tensor:
        """Processed logits [R, k, V], each after its path of drafts."""
        return self.processing(logits, self.rows.texts(), paths)

    def scores(self, logits: Tensor, proposal: Proposal) -> Tensor:
        """Processed logits [R, n + 1, V] of each slot."""
        if not self.processing.processors:
            return logits
        paths = [_places(tree, self.rows.eos) for tree in proposal.trees]
        above = [[0, *(parent + 1 for parent in tree.parents)] for tree in proposal.trees]
        return self.processing(logits, self.rows.texts(), paths, above)

    def first(self, scores: Tensor) -> list[int]:
        """The tokens that follow the prompts, from scores [R, V]."""
        if not self.samples:
            return likeliest(scores).tolist()
        if not self.shares:
            return torch.multinomial(scores.softmax(-1), 1)[:, 0].tolist()
        self.noise = Noise(len(scores), scores.shape[-1], self.rows.input_ids.device)
        return [draw(scores[row], self.noise.row(row, 0)) for row in range(len(scores))]

    def accept(self, scores: Tensor, proposal: Proposal) -> Kept:
        """What each row keeps, and the token that follows."""
        if not self.samples:
            return accept_greedy(scores, proposal)
        if self.noise is None:
            return accept_sampled(scores, proposal, self.rule)
        alive, said, noise = self.rows.alive, self.rows.said(), self.noise
        noise.forget(min(said))
        return accept_shared(
            scores, proposal, lambda row, depth, logits: draw(logits, noise.row(alive[row], said[row] + depth))
        )

    def settle(self) -> None:
        """The call is over: the random generator is put where plain `generate` leaves it."""
        if self.noise is not None:
            self.noise.settle(max(self.rows.ends) - self.rows.input_ids.shape[1])

    def _noise_of_nodes(self, depth: int, ids: Tensor | None) -> Tensor:
        """[R, m] of the tokens [R, m] at this depth, see `drafter.Noise`."""
        assert self.noise is not None  # only then is the drafter told of it
        each = [
            self.noise.row(row, before + depth - 1)
            for row, before in zip(self.rows.alive, self.rows.said(), strict=True)
        ]
        if ids is not None:
            each = [own[at.to(own.device)] for own, at in zip(each, ids, strict=True)]
        return torch.stack(each)


def draws_nodes(settings: EngineSettings, generation_config: GenerationConfig) -> bool:
    """Whether the drafter's nodes are drawn from its q."""
    return bool(generation_config.do_sample) and settings.draws == "sampled" and settings.accept != "walk"


def _places(tree: Tree, ends: set[int]) -> list[list[int] | None]:
    """What stands above each slot; None after an end token, where processors may have nothing to say."""
    paths: list[list[int] | None] = [[]]
    for parent, token in zip(tree.parents, tree.tokens, strict=True):
        above = paths[parent + 1]
        paths.append(None if above is None or token in ends else [*above, token])
    return paths
