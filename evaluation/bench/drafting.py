"""The drafter's stages on random weights, through the session that decoding opens (`drafting/domino.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...drafting.calibration import BINS, RANKS, SAMPLED, Calibration
from ...drafting.domino import Block
from ...drafting.drafter import Picking, Wanted
from ...drafting.fused_chain import Plan
from ...drafting.proposal import Proposal
from ...generation.settings import EngineSettings
from ...modeling_domino import DominoModel
from ..sessions import opening
from .ceilings import random_values

NODES = 24  # of the tree that is timed
READ = EngineSettings().prefill_chunk


class Sure(Calibration):
    """The likeliest child is kept in 95 of 100 cases and the next in the others, whatever the head says: random weights say nothing.

    So a tree's first nodes are a chain as deep as the block, and the others hang on it: reaches .95, .90, … .44 against .05 at most.
    """

    def __init__(self):
        super().__init__()
        self.chances[:SAMPLED] = np.repeat([0.95, 0.05, *[0.0] * (RANKS - 2)], BINS)

    def observe(self, cell: int, hit: bool) -> None:
        """Nothing is learnt."""


SURE = Sure()


class Drafting:
    """The drafter's stages on one batch of rows that move in step.

    Args:
        draft, target: models of random weights; of the target embedding and LM head are used. context: tokens verified so far.
            new_tokens: the last of them, which the drafter has not read yet. pool: see `EngineSettings.candidate_pool`.
    """

    def __init__(self, draft: DominoModel, target: Any, context: int, batch: int, new_tokens: int, pool: int = 0):
        self.config, self.batch, self.count = draft.config, batch, draft.config.num_drafts
        self.session = draft.open(target, batch, draft.device, pool=pool)
        new = min(new_tokens, context)
        self.read, width = context - new, len(draft.config.target_layer_ids) * draft.config.hidden_size

        def features(tokens: int):
            return random_values((batch, tokens, width), draft.dtype, draft.device)

        for start in range(0, self.read, READ):
            tokens = min(READ, self.read - start)
            self.session.read(features(tokens), [tokens] * batch)
        self.features = features(new)
        self.anchors = torch.randint(draft.config.vocab_size, (batch, 1), device=draft.device)
        self.picking = Picking(plan=Plan(target.get_input_embeddings()))

    def backbone(self) -> Block:
        """A block behind the context, the new features included, and its base logits."""
        self.session.add(self.features, [self.features.shape[1]] * self.batch)
        return self.session.block(self.anchors, self.count)

    def undo(self) -> None:
        """The context is again as before the new features."""
        self.session.cache.lengths = [self.read] * self.batch

    def random_block(self) -> Block:
        """A block without a backbone."""
        device, dtype, shape = self.anchors.device, self.session.own_dtype, (self.batch, self.count)
        hidden = random_values((*shape, self.config.hidden_size), dtype, device)
        return Block(hidden, torch.randn(*shape, self.config.vocab_size, device=device))

    def chain(self, block: Block) -> Proposal:
        """As many greedy drafts a row as the block has."""
        return self._walk(block, self.count, chain=True)

    def tree(self, block: Block) -> Proposal:
        """`NODES` chosen nodes a row, as deep as the block."""
        return self._walk(block, NODES, chain=False)

    def _walk(self, block: Block, nodes: int, chain: bool) -> Proposal:
        wanted = Wanted(nodes, [self.count] * self.batch, 0.0, chain, SURE)
        return self.session.walk(block, self.anchors, wanted, self.picking)


@contextmanager
def whole_blocks(draft: DominoModel) -> Iterator[None]:
    """Within it the drafter proposes all it is asked for: random weights are sure of nothing, and few nodes would be worth verifying."""

    def change(session) -> None:
        propose = session.propose

        def sure(anchors, wanted: Wanted, picking: Picking) -> Proposal:
            return propose(anchors, replace(wanted, floor=0.0, calibration=SURE), picking)

        session.propose = sure

    with opening(draft, change):
        yield
