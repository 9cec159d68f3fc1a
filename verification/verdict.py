"""From a verified proposal to what every row keeps and says next."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . accept import Tables, Verdict, greedy_walk  # fmt: skip  # isort: skip
from .. drafting.proposal import Proposal, Tree  # fmt: skip  # isort: skip

Kept = tuple[list[list[int]], list[int]]  # the path of each row, and the token that follows it


def likeliest(logits: Tensor) -> Tensor:
    """The argmax [...] of logits [..., V], of equals the first; on a CPU by numpy, which takes an eighth of torch's time for it."""
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    return torch.from_numpy(np.asarray(logits.numpy().argmax(axis=-1)))


def accept_greedy(logits: Tensor, proposal: Proposal) -> Kept:
    """Keep what is the target's own choice.

    Args:
        logits: [R, n + 1, V], processed, of each slot.
    """
    choices = likeliest(logits).tolist()
    found = [
        greedy_walk(own, tree.tokens, tree.parents, len(tree))
        for own, tree in zip(choices, proposal.trees, strict=True)
    ]
    return [path for path, _ in found], [token for _, token in found]


def accept_shared(logits: Tensor, proposal: Proposal, draw: Callable[[int, int, Tensor], int]) -> Kept:
    """Draw the target's own token after each slot, and keep the node that has it.

    Args:
        logits: [R, n + 1, V], processed, of each slot. draw: (row, depth of the slot, its logits [V]) -> the token that follows it.
    """
    paths, tokens = [], []
    for row, tree in enumerate(proposal.trees):
        path: list[int] = []
        below = tree.children()
        while True:
            slot = path[-1] + 1 if path else 0
            token = draw(row, len(path), logits[row, slot])
            node = next((child for child in below[slot] if tree.tokens[child] == token), None)
            if node is None:
                break
            path.append(node)
        paths.append(path)
        tokens.append(token)
    return paths, tokens


def accept_sampled(logits: Tensor, proposal: Proposal, rule: Callable) -> Kept:
    """Keep what the rule keeps, and sample what follows.

    Args:
        logits: [R, n + 1, V], processed, in at least float32. rule: of `accept.RULES`.
    """
    paths, tokens = [], []
    for row, tree in enumerate(proposal.trees):
        support, target, tables = _tables(logits[row], tree, proposal, row)
        # one draw of torch's generator seeds them, so that a seed repeats a text
        flips = random.Random(int(torch.randint(2**62, ())))
        verdict = rule(tables, lambda chance, flips=flips: flips.random() < chance)
        paths.append(verdict.path)
        slot = verdict.path[-1] + 1 if verdict.path else 0
        tokens.append(_follow(verdict, target.law(slot), support, flips))
    return paths, tokens


class _Lazy:
    """`accept.Rows` that are made when a rule looks at them, once."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.made: dict[int, Any] = {}

    def __getitem__(self, slot: int) -> Any:
        if slot not in self.made:
            self.made[slot] = self.make(slot)
        return self.made[slot]


class _Target(_Lazy):
    """The target's probabilities after each slot, on the support."""

    def __init__(self, logits: Tensor, support: Tensor) -> None:
        super().__init__(lambda slot: self.law(slot)[support].double().cpu().numpy())
        self.logits = logits
        self.laws: dict[int, Tensor] = {}

    def law(self, slot: int) -> Tensor:
        """[V]."""
        if slot not in self.laws:
            self.laws[slot] = self.logits[slot].softmax(dim=-1)
        return self.laws[slot]


def _tables(logits: Tensor, tree: Tree, proposal: Proposal, row: int) -> tuple[Tensor, "_Target", Tables]:
    """The support's tokens [m], the target's laws, and what the rules read.

    The support is the row's pool and the tokens of chosen nodes outside of it; q is zero there.
    """
    law, vocab = proposal.law, logits.shape[-1]
    if law is None:
        pool = torch.empty(0, dtype=torch.long, device=logits.device)
    else:
        pool = torch.arange(vocab, device=logits.device) if law.ids is None else law.ids[row]
    ids = pool.cpu().numpy()  # sorted
    more: list[int] = []
    columns: list[int] = []
    for token, place in zip(tree.tokens, np.searchsorted(ids, tree.tokens).tolist(), strict=True):
        if place == len(ids) or ids[place] != token:
            more += [] if token in more else [token]
            place = len(ids) + more.index(token)
        columns.append(place)
    support = torch.cat([pool, pool.new_tensor(more)])

    def q(slot: int) -> np.ndarray:
        found = np.zeros(len(support))
        # what lookup hung on stands behind the drawn nodes
        if law is not None and slot < len(law.rows[row]) and (number := law.rows[row][slot]) >= 0:
            found[: len(pool)] = law.q[row, number].double().cpu().numpy()
        return found

    p = _Target(logits, support)
    drawn = tree.drawn
    children = [sorted(nodes, key=lambda n: (drawn[n] < 0, drawn[n])) for nodes in tree.children()]
    sampled = [turn >= 0 for turn in drawn]
    rest = _Lazy(lambda slot: max(1.0 - float(p[slot].sum()), 0.0))
    return support, p, Tables(children, columns, sampled, p, rest, _Lazy(q))


def _follow(verdict: Verdict, law: Tensor, support: Tensor, flips: random.Random) -> int:
    """A token of the verdict's law: on the support by its weights, outside as the target's `law` [V] there."""
    inside = float(verdict.weights.sum())
    if flips.random() * (inside + float(verdict.outside)) < inside:
        reached = np.cumsum(verdict.weights)
        place = np.searchsorted(reached, flips.random() * reached[-1], side="right")
        return int(support[min(int(place), len(support) - 1)])
    outside = law.index_fill(0, support, 0.0)
    return int(torch.multinomial(outside if bool(outside.sum() > 0) else law, 1))
