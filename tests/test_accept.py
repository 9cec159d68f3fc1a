"""Accept rules on trees: exact laws in fractions, by enumerating every draw, every flip and every next token.

The text that a rule emits is extended to a fixed length by the target itself; its law must then be the target's, with
==. Each known bias is built on purpose, and the same comparison must tell it.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from math import ceil, floor, prod
from random import Random

import numpy as np
import pytest
from domino.verification.accept import RULES, Tables, Verdict, greedy_walk
from hypothesis import given, settings
from hypothesis import strategies as st

VOCAB = 3
Law = Callable[[tuple], tuple]  # path → probabilities [VOCAB]


@dataclass(frozen=True)
class Spec:
    """The shape below a slot, known before any draw: one entry per sampled child; chosen ones by token."""

    sampled: tuple = ()
    chosen: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    token: int
    sampled: bool
    children: list


def model(seed, least=1, pool=VOCAB, vocab=VOCAB) -> Law:
    """A random law after every path; least = 0 gives zeros. Only tokens below `pool` are possible."""

    @cache
    def law(path):
        weights = [Random(f"{seed} {path} {x}").randint(least, 5) if x < pool else 0 for x in range(vocab)]
        weights[len(path) % pool] += not any(weights)
        return tuple(Fraction(x, sum(weights)) for x in weights)

    return law


def merged(here: Spec, other: Spec) -> Spec:
    """`here` with the chosen nodes of `other`."""
    both = here.chosen | other.chosen
    return Spec(here.sampled, {x: merged(here.chosen.get(x, s), other.chosen.get(x, s)) for x, s in both.items()})


def ordered(law, count, distinct=True) -> Iterator[tuple]:
    """Every draw of `count` tokens in order: (probability, tokens). Fewer are drawn where no more are possible."""
    if not count or not any(law):
        yield Fraction(1), ()
        return
    for token, weight in enumerate(law):
        if weight:
            left = [0 if distinct and x == token else y for x, y in enumerate(law)]
            for chance, others in ordered(left, count - 1, distinct):
                yield weight / sum(law) * chance, (token, *others)


def grown(spec: Spec, q: Law, distinct=True, path=()) -> Iterator[tuple]:
    """Every outcome of drawing what hangs below a path: (probability, nodes in test order)."""
    for chance, tokens in ordered(q(path), len(spec.sampled), distinct):
        below = [(x, True, merged(s, spec.chosen.get(x, Spec()))) for x, s in zip(tokens, spec.sampled, strict=False)]
        below += [(x, False, s) for x, s in spec.chosen.items() if x not in tokens]
        for parts in itertools.product(*[list(grown(s, q, distinct, (*path, x))) for x, _, s in below]):
            nodes = [Node(x, drawn, part[1]) for (x, drawn, _), part in zip(below, parts, strict=True)]
            yield chance * prod(part[0] for part in parts), nodes


def tabulate(nodes, p: Law, q: Law) -> tuple[Tables, list, list]:
    """The tables of a drawn tree, the path to each slot, and the support."""
    paths, column, sampled, children = [()], [], [], [[]]

    def add(slot, nodes):
        for node in nodes:
            children[slot].append(len(column))
            paths.append((*paths[slot], node.token))
            column.append(node.token)
            sampled.append(node.sampled)
            children.append([])
            add(len(column), node.children)

    add(0, nodes)
    drafting = [any(sampled[c] for c in below) for below in children]
    laws = [q(path) if drafts else (0,) * len(p(path)) for path, drafts in zip(paths, drafting, strict=True)]
    support = sorted({*column, *(x for law in laws for x, y in enumerate(law) if y)})
    arrays = [np.empty((len(paths), len(support)), dtype=object) for _ in range(2)]
    for slot, path in enumerate(paths):
        arrays[0][slot], arrays[1][slot] = [p(path)[x] for x in support], [laws[slot][x] for x in support]
    rest = np.array([Fraction(1) - sum(p(path)[x] for x in support) for path in paths] + [None], dtype=object)[:-1]
    return Tables(children, [support.index(x) for x in column], sampled, arrays[0], rest, arrays[1]), paths, support


def played(rule, tables, coin=lambda a: a) -> Iterator[tuple]:
    """Every outcome of a rule's flips: (probability, verdict). A flip asked for a is true with probability coin(a)."""
    scripts = [[]]
    while scripts:
        script, taken, chance = scripts.pop(), [], Fraction(1)

        def flip(asked, script=script, taken=taken):
            nonlocal chance
            assert 0 <= asked <= 1
            likely = coin(asked)
            new = len(taken) >= len(script)
            yes = likely > 0 if new else script[len(taken)]
            if new and 0 < likely < 1:
                scripts.append([*taken, False])
            taken.append(yes)
            chance *= likely if yes else 1 - likely
            return yes

        verdict = rule(tables, flip)
        yield chance, verdict


def emitted(trees, rule, p, q, coin=lambda a: a, spoil=lambda tables: tables) -> tuple[Counter, Counter]:
    """The law of the text a rule emits, path and next token, and that of the path."""
    texts, kept = Counter(), Counter()
    for chance, nodes in trees:
        tables, paths, support = tabulate(nodes, p, q)
        for flips, verdict in played(rule, spoil(tables), coin):
            path = paths[verdict.path[-1] + 1] if verdict.path else ()
            assert len(path) == len(verdict.path)
            kept[path] += chance * flips
            for token, share in enumerate(following(verdict, p(path), support)):
                texts[(*path, token)] += chance * flips * share
    return texts, kept


def following(verdict: Verdict, law, support) -> list:
    """The law of the next token."""
    whole = sum(verdict.weights) + verdict.outside
    beyond = sum(y for x, y in enumerate(law) if x not in support)
    return [
        verdict.weights[support.index(x)] / whole if x in support else y and verdict.outside / whole * y / beyond
        for x, y in enumerate(law)
    ]


def extended(texts: Counter, p: Law, length: int) -> dict:
    """Texts continued by the target to one length; impossible ones left out."""
    whole = Counter()
    for text, chance in texts.items():
        if len(text) == length:
            whole[text] += chance
        else:
            whole.update(extended({(*text, x): chance * y for x, y in enumerate(p(text))}, p, length))
    return {text: chance for text, chance in whole.items() if chance}


def is_lossless(texts, p) -> bool:
    length = max(map(len, texts))
    return extended(texts, p, length) == extended({(): Fraction(1)}, p, length)


def check(spec, rule, p, q, **how):
    return is_lossless(emitted(grown(spec, q), RULES[rule], p, q, **how)[0], p)


def tokens_kept(spec, rule, p, q) -> Fraction:
    kept = emitted(grown(spec, q), RULES[rule], p, q)[1]
    return sum(len(path) * chance for path, chance in kept.items())


LEAF = Spec()
CHAIN = Spec((Spec((Spec((LEAF,)),)),))
CHOSEN = Spec(chosen={0: Spec(chosen={1: Spec(chosen={0: LEAF}), 2: LEAF}), 2: Spec(chosen={2: LEAF})})
SHAPES = {
    "nothing": LEAF,
    "chain": CHAIN,
    "chosen": CHOSEN,
    "siblings": Spec((LEAF, LEAF, LEAF)),
    "grandchildren": Spec((Spec((LEAF, LEAF)), Spec((LEAF,)))),
    "merging": Spec((Spec((LEAF,)), LEAF), {1: Spec(chosen={0: LEAF}), 2: LEAF}),
    "merging twice": Spec((Spec((LEAF,), {1: LEAF}),), {0: Spec(chosen={0: Spec(chosen={2: LEAF}), 2: LEAF})}),
    "chosen below sampled": Spec((Spec((), {2: Spec(chosen={0: LEAF})}), Spec((LEAF,), {0: LEAF}))),
    "sampled below chosen": Spec(chosen={1: Spec((LEAF, LEAF)), 0: Spec((Spec((LEAF,)),))}),
}
LAWS = {
    "positive": (dict(), dict()),
    "zeros": (dict(least=0), dict(least=0)),
    "pool": (dict(vocab=4, pool=4), dict(vocab=4, pool=2)),
    "target's pool": (dict(pool=2), dict()),
}


def laws(kind, seed=0):
    ours, drafters = LAWS[kind]
    return model(f"p{seed}", **ours), model(f"q{seed}", **drafters)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_text_has_the_law_of_the_target(shape, kind, rule):
    assert check(SHAPES[shape], rule, *laws(kind))


def specs(depth):
    """Shapes of at most two sampled and one chosen child a slot, sampled ones below sampled ones only on one side."""
    if not depth:
        return st.just(LEAF)
    below, limbs = specs(depth - 1), st.dictionaries(st.integers(0, VOCAB - 1), st.just(LEAF), max_size=1)
    sampled = st.one_of(st.just(()), st.tuples(below), st.tuples(below, limbs.map(lambda c: Spec((), c))))
    return st.builds(
        Spec, sampled, st.dictionaries(st.integers(0, VOCAB - 1), limbs.map(lambda c: Spec((), c)), max_size=1)
    )


@settings(max_examples=150, deadline=None, derandomize=True)
@given(specs(3), st.sampled_from(sorted(LAWS)), st.integers(0, 1000))
def test_any_shape_and_law(spec, kind, seed):
    p, q = laws(kind, seed)
    for rule in RULES:
        assert check(spec, rule, p, q)


def test_merging_leaves_a_node_out_and_keeps_what_is_below():
    _, q = laws("positive")
    drawn = {tuple(node.token for node in nodes if node.sampled): nodes for _, nodes in grown(SHAPES["merging"], q)}
    first, second = drawn[1, 0][0], drawn[0, 1][1]
    assert [node.token for node in drawn[1, 0]] == [1, 0, 2]
    assert [node.token for node in drawn[0, 1]] == [0, 1, 2]
    assert [node.token for node in drawn[1, 2]] == [1, 2]
    assert (0, False) in [(node.token, node.sampled) for node in second.children]
    assert len(first.children) in (1, 2)  # its own child, drawn, may be the same


# How much is kept


def chain_law(rule, p, q, drafts) -> Counter:
    """The law of (drafts kept, next token) on a chain, from the papers' formulas (arXiv 2403.10444 and 2211.17192)."""
    ratio = [p(drafts[:i])[x] / q(drafts[:i])[x] for i, x in enumerate(drafts)]
    reach = [Fraction(1)]
    for r in ratio:
        reach.append(min(1, reach[-1] * r) if rule == "traversal" else Fraction(1))
    over = [[max(f * a - b, 0) for a, b in zip(p(drafts[:i]), q(drafts[:i]), strict=True)] for i, f in enumerate(reach)]
    over[-1] = p(drafts)
    if rule == "traversal":
        ends = [sum(s) / (sum(s) + 1 - f) if sum(s) else Fraction(0) for s, f in zip(over, reach, strict=True)]
        ends = [Fraction(1), *ends[1:-1], reach[-1]]
        chance = [h * prod(1 - later for later in ends[i + 1 :]) for i, h in enumerate(ends)]
    else:
        stops = [*(1 - min(1, r) for r in ratio), Fraction(1)]
        chance = [stop * prod(1 - earlier for earlier in stops[:i]) for i, stop in enumerate(stops)]
    parts = [
        (i, x, c * y / sum(s)) for i, (c, s) in enumerate(zip(chance, over, strict=True)) if c for x, y in enumerate(s)
    ]
    return Counter({(i, x): y for i, x, y in parts if y})


@pytest.mark.parametrize("rule", ["traversal", "recursive"])
@pytest.mark.parametrize("kind", LAWS)
def test_on_a_chain_it_is_block_or_token_by_token(kind, rule):
    p, q = laws(kind)
    for _, nodes in grown(CHAIN, q):
        tables, paths, support = tabulate(nodes, p, q)
        seen = Counter()
        for chance, verdict in played(RULES[rule], tables):
            path = paths[len(verdict.path)]
            for token, share in enumerate(following(verdict, p(path), support)):
                seen[len(path), token] += chance * share
        assert {key: y for key, y in seen.items() if y} == chain_law(rule, p, q, paths[-1])


@pytest.mark.parametrize("kind", LAWS)
def test_of_chosen_nodes_all_keep_the_same(kind):
    """One and the sum of path probabilities (with the token that follows), which no rule can exceed."""
    p, q = laws(kind)
    outcomes = [emitted(grown(CHOSEN, q), rule, p, q) for rule in RULES.values()]
    assert all(outcome == outcomes[0] for outcome in outcomes)
    paths = [(0,), (2,), (0, 1), (0, 2), (0, 1, 0), (2, 2)]
    assert tokens_kept(CHOSEN, "walk", p, q) == sum(prod(p(path[:i])[x] for i, x in enumerate(path)) for path in paths)


def spines(depth):
    """A sampled chain with leaves beside its nodes, one sampled at most, and chosen ones."""
    if not depth:
        return st.just(LEAF)
    sampled = st.one_of(st.tuples(spines(depth - 1)), st.tuples(spines(depth - 1), st.just(LEAF)))
    return st.builds(Spec, sampled, st.dictionaries(st.integers(0, VOCAB - 1), st.just(LEAF), max_size=2))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(spines(3), st.sampled_from(sorted(LAWS)), st.integers(0, 1000))
def test_traversal_keeps_most_on_a_spine_with_limbs(spec, kind, seed):
    """Not proved but tried; see the next test for shapes on which it does not."""
    p, q = laws(kind, seed)
    kept = {rule: tokens_kept(spec, rule, p, q) for rule in RULES}
    assert kept["traversal"] >= max(kept.values())


@pytest.mark.parametrize(
    ("better", "worse", "spec", "kind", "seed"),
    [
        ("recursive", "traversal", Spec((Spec((LEAF, Spec(chosen={0: LEAF}))),)), "positive", 268672),
        ("walk", "traversal", SHAPES["chosen below sampled"], "pool", 49),
    ],
)
def test_no_rule_is_best_on_every_shape(better, worse, spec, kind, seed):
    p, q = laws(kind, seed)
    assert tokens_kept(spec, better, p, q) > tokens_kept(spec, worse, p, q)
    assert check(spec, better, p, q)
    assert check(spec, worse, p, q)


# Biases, each built on purpose


def everywhere(change, nodes, path=()):
    """change(path, nodes) on the siblings below every slot."""
    return [replace(x, children=everywhere(change, x.children, (*path, x.token))) for x in change(path, nodes)]


def changed(spec, q, change, distinct=True):
    return [(chance, everywhere(change, nodes)) for chance, nodes in grown(spec, q, distinct)]


def removed(law, token):
    left = law.copy()
    left[token] = 0
    return left


def top_down(tables, flip, *, forgets=True, normalises=True) -> Verdict:
    """`recursive` as in its papers. forgets=False leaves q as it was: right for independent draws."""
    slot, path = 0, []
    while True:
        p, rest, q = tables.p[slot], tables.rest[slot], tables.q[slot]
        for child in tables.children[slot]:
            x, drawn = tables.column[child], tables.sampled[child]
            if flip(min(1, p[x] / q[x]) if drawn else p[x]):
                path.append(child)
                slot = child + 1
                break
            left = np.maximum(p - q, 0) if drawn else removed(p, x)
            total = sum(left) + rest
            if total:
                p, rest = (left / total, rest / total) if normalises else (left, rest)
            if drawn and forgets:
                q = removed(q, x)
                q = q / (sum(q) or 1)
        else:
            return Verdict(path, p, rest)


def bottom_up(tables, flip, slot=0, w=1, *, scales=True, lowers=True) -> Verdict | None:
    """`traversal` as in its paper. scales=False takes the residual of p, not of w p; lowers=False keeps w as it was."""
    p, rest, q = tables.p[slot], tables.rest[slot], tables.q[slot]
    for child in tables.children[slot]:
        x, drawn = tables.column[child], tables.sampled[child]
        share = min(1, w * p[x] / q[x]) if drawn else w * p[x]
        found = bottom_up(tables, flip, child + 1, share, scales=scales, lowers=lowers)
        if found:
            return replace(found, path=[child, *found.path])
        factor = w if scales else 1
        left = np.maximum(factor * p - q, 0) if drawn else removed(factor * p, x)
        total = sum(left) + factor * rest
        if total:
            p, rest = left / total, factor * rest / total
        if slot and lowers:
            w = total and total / (total + 1 - w)
        if drawn:
            q = removed(q, x)
            q = q / (sum(q) or 1)
    return Verdict([], p, rest) if not slot or flip(w) else None


def cumulative(tables, flip) -> Verdict:
    """`walk` by one coin against the running sum of p over the children."""
    slot, path = 0, []
    while True:
        p, left = tables.p[slot], Fraction(1)
        for child in tables.children[slot]:
            x = tables.column[child]
            if flip(min(1, tables.p[slot][x] / left) if left > 0 else 0):
                path.append(child)
                slot = child + 1
                break
            p, left = removed(p, x), left - tables.p[slot][x]
        else:
            return Verdict(path, p, tables.rest[slot])


TWO = Spec((Spec((LEAF,)), LEAF))
MIXED = SHAPES["merging"]


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_variants_without_their_mistakes_are_the_rules(shape, kind):
    p, q = laws(kind)
    for rule, variant in (("recursive", top_down), ("traversal", bottom_up), ("walk", cumulative)):
        trees = list(grown(SHAPES[shape], q))
        assert emitted(trees, RULES[rule], p, q) == emitted(trees, variant, p, q)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("spec", "change"),
    [
        (CHAIN, lambda path, nodes: [x for x in nodes if laws("positive")[1](path)[x.token] > Fraction(1, 4)]),
        (TWO, lambda path, nodes: [x for x in nodes if laws("positive")[1](path)[x.token] > Fraction(1, 4)]),
        (CHOSEN, lambda path, nodes: [replace(x, sampled=True) for x in nodes]),
        (MIXED, lambda path, nodes: [replace(x, sampled=True) for x in nodes]),
        (TWO, lambda path, nodes: sorted(nodes, key=lambda x: x.token)),
        (TWO, lambda path, nodes: nodes[::-1]),
        (MIXED, lambda path, nodes: sorted(nodes, key=lambda x: x.sampled)),
    ],
    ids=["pruned chain", "pruned", "chosen as sampled", "mixed as sampled", "sorted", "reversed", "chosen first"],
)
def test_a_bias_by_the_tree_is_told(spec, change, rule):
    """Pruned by their own q, tested by a law not drawn from, or in another order. The walk alone reads none of it."""
    p, q = laws("positive")
    assert check(spec, rule, p, q)
    assert is_lossless(emitted(changed(spec, q, change), RULES[rule], p, q)[0], p) == (rule == "walk")


def uneven(*weights) -> Law:
    return lambda path: tuple(Fraction(x, sum(weights)) for x in weights)


# After the first miss two tokens are left: were it one, every residual would be the same once normalised.
UNEVEN = uneven(1, 5, 3, 1), uneven(7, 1, 1, 1)


def first_of_each(path, nodes):
    return [x for i, x in enumerate(nodes) if x.token not in [y.token for y in nodes[:i]]]


def with_replacement(tables, flip):
    return top_down(tables, flip, forgets=False)


def test_duplicates_are_told():
    """Independent draws. Deduplicated they are draws without replacement; how many depends on earlier ones alone."""
    p, q = UNEVEN
    spec = Spec((LEAF, Spec((LEAF,)), LEAF))
    twice = list(grown(spec, q, distinct=False))
    once = changed(spec, q, first_of_each, distinct=False)

    def right(trees, rule):
        return is_lossless(emitted(trees, rule, p, q)[0], p)

    assert {name: right(twice, rule) for name, rule in RULES.items()} == {name: name == "walk" for name in RULES}
    assert all(right(once, rule) for rule in RULES.values())
    assert right(twice, with_replacement)
    assert not right(once, with_replacement)
    assert right(once, cumulative)
    assert not right(twice, cumulative)


@pytest.mark.parametrize(
    ("variant", "mistake"),
    [(top_down, "forgets"), (top_down, "normalises"), (bottom_up, "scales"), (bottom_up, "lowers")],
)
def test_a_residual_not_updated_is_told(variant, mistake):
    p, q = UNEVEN
    trees = list(grown(TWO, q))

    def mistaken(tables, flip):
        return variant(tables, flip, **{mistake: False})

    assert is_lossless(emitted(trees, variant, p, q)[0], p)
    assert not is_lossless(emitted(trees, mistaken, p, q)[0], p)


@pytest.mark.parametrize("rule", RULES)
def test_a_coin_that_may_equal_is_told(rule):
    """A coin of eighths, one of them 0. With <= it accepts probability 0, for which traversal never asks."""
    spec, length = Spec(chosen={0: LEAF, 1: LEAF}), 8

    def p(path):
        return (Fraction(0), Fraction(length // 2, length), Fraction(length // 2, length))

    assert check(spec, rule, p, p, coin=lambda a: Fraction(ceil(length * a), length))
    texts = emitted(grown(spec, p), RULES[rule], p, p, coin=lambda a: min(Fraction(floor(length * a) + 1, length), 1))[
        0
    ]
    assert not is_lossless(texts, p)
    assert any(text[0] == 0 for text, chance in texts.items() if chance) == (rule != "traversal")


@pytest.mark.parametrize("rule", RULES)
def test_a_sampled_node_beyond_what_q_can_draw_is_never_kept(rule):
    """As drawn where siblings are of a fixed number and the pool has fewer."""
    p, q = laws("pool")
    trees = [(chance, [*nodes, Node(3, True, [])]) for chance, nodes in grown(SHAPES["siblings"], q)]
    texts, kept = emitted(trees, RULES[rule], p, q)
    assert is_lossless(texts, p)
    assert bool(kept[(3,)]) == (rule == "walk")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", ["chain", "siblings", "merging"])
def test_another_law_than_drawn_from_is_told(shape, rule):
    """q before the processors where the drafts were drawn after them, and p likewise."""
    (p, q), raw = laws("target's pool"), model("raw")
    trees = list(grown(SHAPES[shape], q))
    assert is_lossless(emitted(trees, RULES[rule], p, q)[0], p)
    assert is_lossless(emitted(trees, RULES[rule], p, raw)[0], p) == (rule == "walk")
    assert not is_lossless(emitted(trees, RULES[rule], raw, q)[0], p)


@pytest.mark.parametrize("rule", RULES)
def test_padding_that_can_match_is_told(rule):
    """A padding node has a token, and logits of no meaning. It does no harm where it is nobody's child."""
    p, q = laws("positive")
    spec = Spec((Spec((LEAF,)),))
    token = max(
        range(VOCAB), key=lambda x: p(())[x] - q(())[x]
    )  # one that may be left when the sampled node is not kept
    trees = [(chance, [*nodes, Node(token, False, [])]) for chance, nodes in grown(spec, q)]

    def meaningless(tables):
        laws = tables.p.copy()
        laws[-1] = [Fraction(1), *[Fraction(0)] * (VOCAB - 1)]
        return replace(tables, p=laws)

    def orphaned(tables):
        return replace(meaningless(tables), children=[tables.children[0][:-1], *tables.children[1:]])

    assert not is_lossless(emitted(trees, RULES[rule], p, q, spoil=meaningless)[0], p)
    assert is_lossless(emitted(trees, RULES[rule], p, q, spoil=orphaned)[0], p)


# Floats


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", LAWS)
def test_floats_give_the_same_law(kind, rule):
    def rounded(tables):
        return replace(tables, **{name: getattr(tables, name).astype(float) for name in ("p", "rest", "q")})

    p, q = laws(kind)
    for shape in ("chain", "grandchildren", "merging"):
        with np.errstate(all="raise"):
            texts, _ = emitted(grown(SHAPES[shape], q), RULES[rule], p, q, spoil=rounded)
        length = max(map(len, texts))
        law, truth = extended(texts, p, length), extended({(): Fraction(1)}, p, length)
        assert max(abs(law.get(text, 0) - truth.get(text, 0)) for text in law | truth) < 1e-14


HARD = [
    [1, 0, 0, 0],
    [0.1, 0.2, 0.3, 0.4],
    [0.1 + 1e-17, 0.2, 0.3 - 1e-16, 0.4],
    [1e-300, 1 - 1e-16, 1e-16, 0],
    [5e-324, 0, 0, 1],
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_rounding_never_leaves_an_empty_law(data):
    """Even where a flip that rounding keeps from being sure goes the other way."""
    parents, slots = [-1, -1, -1, 0, 0, 1, 3], 8
    children = [[c for c, parent in enumerate(parents) if parent == slot] for slot in range(-1, slots - 1)]
    column = [0] * len(parents)
    for below in children:
        for child, token in zip(below, data.draw(st.permutations(range(4))), strict=False):
            column[child] = token
    rows = st.lists(st.sampled_from(HARD), min_size=slots, max_size=slots)
    p, q, rest = data.draw(rows), data.draw(rows), data.draw(st.sampled_from([0.0, 0.3]))
    sampled = data.draw(st.lists(st.booleans(), min_size=7, max_size=7))
    tables = Tables(children, column, sampled, np.array(p) * (1 - rest), np.full(slots, rest), np.array(q))
    coins = Random(data.draw(st.integers(0, 99)))
    for rule in RULES.values():
        with np.errstate(divide="raise", invalid="raise", over="raise"):
            verdict = rule(tables, lambda a: a >= 1 or (a > 0 and coins.random() < 0.5))
        assert np.isfinite(verdict.weights).all()
        assert (verdict.weights >= 0).all()
        assert verdict.weights.sum() + verdict.outside > 0


def test_what_is_not_tested_is_not_read():
    """Neither what is below a child not reached (its rows could not even be multiplied), nor q."""
    one, none = [Fraction(1), Fraction(0)], [None, None]
    p, q = np.array([one, none, one], dtype=object), np.array([none, none, none], dtype=object)
    tables = Tables([[0, 1], [], []], [1, 0], [False, False], p, np.array([Fraction(0)] * 3), q)
    for rule in RULES.values():
        assert rule(tables, lambda a: a > 0).path == [1]


# Worked examples, and temperature 0


def row(*values):
    return [Fraction(value) for value in values]


@pytest.mark.parametrize(
    ("rule", "children", "column", "p", "q", "asked", "left"),
    [
        (
            "recursive",
            [[0, 1], [], []],
            [1, 0],
            [row(".5", ".3", ".2")] * 3,
            [row(".2", ".6", ".2")] * 3,
            row("1/2", "1"),
            None,
        ),
        (
            "walk",
            [[0, 1], [], []],
            [0, 1],
            [row(".5", ".3", ".2")] * 3,
            [row("0", "0", "0")] * 3,
            row(".5", ".6"),
            row("0", "0", "1"),
        ),
        (
            "traversal",
            [[0], [1], []],
            [1, 0],
            [row(".6", ".4"), row(".5", ".5"), row(".5", ".5")],
            [row(".3", ".7"), row(".9", ".1"), row("0", "0")],
            row("20/63", "13/43"),
            row("1", "0"),
        ),
    ],
)
def test_worked_examples(rule, children, column, p, q, asked, left):
    """Every flip that can fail does."""
    seen = []
    rest = np.array([Fraction(0)] * len(p))
    tables = Tables(children, column, [True, True], np.array(p), rest, np.array(q))
    verdict = RULES[rule](tables, lambda a: seen.append(a) or a == 1)
    assert seen == asked
    if left:
        assert verdict.path == []
        assert list(verdict.weights / sum(verdict.weights)) == left


def test_greedy_walk_by_hand():
    tokens, parents = [5, 7, 9, 8], [-1, -1, 1, 2]
    assert greedy_walk([7, 3, 9, 4, 6], tokens, parents, 4) == ([1, 2], 4)
    assert greedy_walk([7, 3, 9, 8, 6], tokens, parents, 4) == ([1, 2, 3], 6)
    assert greedy_walk([7, 3, 9, 8, 6], tokens, parents, 2) == ([1], 9)
    assert greedy_walk([7, 3, 9, 8, 6], tokens, parents, 0) == ([], 7)
    assert greedy_walk([9, 3, 9, 8, 6], tokens, parents, 4) == ([], 9)
    assert greedy_walk([5, 7, 9, 8, 6], tokens, parents, 4) == ([0], 7)
    assert greedy_walk([5], [], [], 0) == ([], 5)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(specs(3), st.integers(0, 1000))
def test_at_temperature_zero_every_rule_is_the_greedy_walk(spec, seed):
    def p(path):
        return tuple(Fraction(x == Random(f"{seed} {path}").randrange(VOCAB)) for x in range(VOCAB))

    _, q = laws("positive", seed)
    chance, nodes = Random(seed).choice(list(grown(spec, q)))
    tables, paths, support = tabulate(nodes, p, q)
    parents = [paths.index(path[:-1]) - 1 for path in paths[1:]]
    tokens = [path[-1] for path in paths[1:]]
    kept, token = greedy_walk([p(path).index(1) for path in paths], tokens, parents, len(tokens))
    for rule in RULES.values():
        ((chance, verdict),) = played(rule, tables)
        assert verdict.path == kept
        assert following(verdict, p(paths[kept[-1] + 1] if kept else ()), support)[token] == 1
