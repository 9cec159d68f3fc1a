"""In bfloat16 on a CPU a token's logits do not depend on what is read with it: texts are the same with drafts and without, bit for bit."""

import random

import numpy as np
import pytest
import torch
from domino import DominoModel, generate
from domino.acceleration import tree_values
from domino.acceleration.invariance import obstacle
from domino.acceleration.invariant_attention import NAME, attention
from domino.acceleration.packed_linear import RowLimits, within
from domino.acceleration.summation import cancelling, row_limits
from domino.acceleration.tree_values import TreeValues
from domino.acceleration.view import decoding_view
from domino.drafting.proposal import Proposal, Tree
from domino.embedded.smollm2 import DRAFTER, target_folder
from domino.evaluation.answering import encode
from domino.evaluation.tasks import load as questions
from domino.verification.target import RowTarget
from tiny import make_draft, make_target
from transformers import AutoModelForCausalLM, AutoTokenizer

TASKS = ("gsm8k", "humaneval", "math500", "mt_bench")


@pytest.fixture(scope="module")
def pair():
    folder = target_folder()
    target = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    draft = DominoModel.from_pretrained(DRAFTER, dtype=torch.bfloat16).eval()
    if not is_invariant(target):
        pytest.skip(f"this machine adds in another order: {obstacle(target, {})}")
    return target, draft, AutoTokenizer.from_pretrained(folder)


def is_invariant(target, packs=True):
    return decoding_view(target, packs, invariant=True).config._attn_implementation == NAME


def prompts(tokenizer, each):
    """Of each task so many, in turn."""
    asked = [questions(task, each) for task in TASKS]
    return [encode(tokenizer, task[place].turns[0], "cpu")["input_ids"] for place in range(each) for task in asked]


def text(pair, ids, **options):
    target, draft, _ = pair
    return generate(target, draft, ids, **{"do_sample": False, "max_new_tokens": 16, "pad_token_id": 2} | options)


def alike(pair, asked, budgets=("auto", 24), **options):
    """Of how many prompts the texts with each budget are those without drafts."""
    found = dict.fromkeys(budgets, 0)
    for ids in asked:
        alone = text(pair, ids, budget=0, **options)
        for budget in budgets:
            found[budget] += torch.equal(text(pair, ids, budget=budget, **options), alone)
    return found


def batch(asked):
    """Prompts padded on the left."""
    longest = max(ids.shape[1] for ids in asked)
    ids = torch.full((len(asked), longest), 2)
    for row, one in zip(ids, asked, strict=True):
        row[longest - one.shape[1] :] = one[0]
    mask = torch.arange(longest) >= torch.tensor([[longest - one.shape[1]] for one in asked])
    return ids, mask.long()


def of_batch(pair, asked, **options):
    """The new tokens of each row."""
    ids, mask = batch(asked)
    return [row[ids.shape[1] :].tolist() for row in text(pair, ids, attention_mask=mask, **options)]


def starts_with(row, alone):
    return row[: len(alone)] == alone


def test_drafts_change_no_text(pair):
    assert alike(pair, prompts(pair[2], 1)) == {"auto": 4, 24: 4}


def test_rows_of_a_batch_are_as_alone(pair):
    asked = prompts(pair[2], 1)
    alone = [text(pair, ids, budget=0)[0, ids.shape[1] :].tolist() for ids in asked]
    for budget in (0, 12):
        assert all(map(starts_with, of_batch(pair, asked, budget=budget), alone))


def test_chunks_of_a_prompt_and_layers_that_are_not_packed(pair):
    ids = prompts(pair[2], 1)[1]
    for pack in (True, False):
        alone = text(pair, ids, budget=0, pack=pack)
        for chunk in (33, 64):
            assert torch.equal(text(pair, ids, budget=12, pack=pack, prefill_chunk=chunk), alone)
    assert torch.equal(text(pair, ids, budget=12, cache_implementation="static"), text(pair, ids, budget=0))


def reader(pair, ids, packs=True):
    found = RowTarget(decoding_view(pair[0], packs, True), [0, 1], len(ids), 2000, None, 512, False, ids[0].device)
    for _ in found.prefill(ids):
        pass
    return found


def tree(parents, tokens):
    found = Tree()
    for parent, token in zip(parents, tokens, strict=True):
        found.add(token, parent, 1.0, 0, 0)
    return found


def one_by_one(pair, ids, tokens):
    """Logits after the last of these tokens."""
    found = reader(pair, [ids])
    for token in tokens:
        logits, _ = found.verify(torch.tensor([[token]]), Proposal([Tree()]))
        found.commit([[]])
    return logits[0, 0]


@torch.no_grad()
@pytest.mark.parametrize(("lengths", "nodes"), [((94,), 7), ((62, 31), 12), ((500,), 30), ((15, 40, 95), 63)])
def test_nodes_of_trees_are_as_in_a_chain(pair, lengths, nodes):
    """Across tiles of 32 keys, multiples of 64, 32 rows of a product."""
    compare_nodes(pair, lengths, nodes, vocabulary=40000)


def compare_nodes(pair, lengths, nodes, vocabulary):
    """Random trees behind random texts, each row's of another size, against their paths read token by token."""
    choose = random.Random(nodes)
    ids = [torch.tensor(choose.choices(range(5, vocabulary), k=length)) for length in lengths]
    anchors = [[choose.randrange(5, vocabulary)] for _ in ids]
    trees = []
    for row in range(len(ids)):
        parents = [choose.randrange(max(-1, node - 5), node) for node in range(nodes - 3 * row)]
        trees.append(tree(parents, choose.choices(range(5, vocabulary), k=len(parents))))
    logits, _ = reader(pair, ids).verify(torch.tensor(anchors), Proposal(trees))
    for row, one in enumerate(trees):
        for node in (-1, len(one) // 2, len(one) - 1):
            path = [one.tokens[above] for above in one.path(node)]
            assert torch.equal(logits[row, node + 1], one_by_one(pair, ids[row], anchors[row] + path)), (row, node)


@torch.no_grad()
@pytest.mark.usefixtures("pair")
@pytest.mark.parametrize(
    ("family", "changes"),
    [("mistral", {"sliding_window": 40}), ("qwen3", {}), ("qwen2", {}), ("gemma", {"num_key_value_heads": 2})],
)
def test_other_families(family, changes):
    """Sliding windows, norms of query and key, biases, other embeddings; at sizes where products are the library's own."""
    shape = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_hidden_layers": 2, "vocab_size": 1000}
    target = make_target(family, **shape | changes, max_position_embeddings=512).to(torch.bfloat16)
    assert is_invariant(target)
    compare_nodes((target, None, None), (94, 61), 12, vocabulary=1000)


def test_the_worked_example_of_tiles(monkeypatch):
    monkeypatch.setattr(tree_values, "TILE", 4)
    parents = [-1, 0, -1]  # b below the anchor, c below b, d below the anchor
    proposal = Proposal([tree(parents, [5, 6, 7])])
    values = TreeValues([6], proposal.depths(), proposal.ancestors(), proposal.counts)
    ((tiles, used),) = values.places
    assert tiles == [(1, [0, 1]), (1, [0, 3]), (2, [2])]
    assert [sorted(own) for own in used] == [[0], [0], [0, 2], [1]]
    assert values.end == 16


@pytest.mark.parametrize("groups", [1, 3])
def test_sums_over_tiles_are_those_of_attention(groups):
    """In float64 against plain attention over each node's path, for ragged rows."""
    generator = torch.Generator().manual_seed(0)
    choose = random.Random(0)
    lengths, counts, width = [30, 61], [11, 6], 8
    trees = [tree([choose.randrange(-1, node) for node in range(n)], range(n)) for n in counts]
    proposal = Proposal(trees)
    values = TreeValues(lengths, proposal.depths(), proposal.ancestors(), proposal.counts)
    slots = -(-max(values.end, max(lengths) + 12) // 64) * 64
    query = torch.randn(2, 2 * groups, 12, width, generator=generator).double()
    key, value = (torch.randn(2, 2, slots, width, generator=generator).double() for _ in range(2))
    at = torch.tensor(np.array(lengths)[:, None] + proposal.depths())
    mask = (torch.arange(slots) <= at[..., None])[:, None]
    mask.__dict__["_domino_tree"] = values
    out, _ = attention(None, query, key, value, mask)
    for row, one in enumerate(trees):
        for node in range(-1, len(one)):
            seen = [*range(lengths[row]), *(lengths[row] + slot + 1 for slot in [-1, *one.path(node)])]
            for head in range(2 * groups):
                keys, sums = key[row, head // groups, seen], value[row, head // groups, seen]
                weights = (keys @ query[row, head, node + 1] * width**-0.5).softmax(-1)
                assert torch.allclose(out[row, node + 1, head], weights @ sums, rtol=0, atol=1e-12)


def test_rows_within_limits():
    seen = []

    def product(x):
        seen.append(len(x))
        return 2 * x

    x = torch.randn(3, 100, 4)
    assert torch.equal(within(RowLimits(2, 128), product, x), 2 * x)
    assert seen == [128, 128, 44]
    assert torch.equal(within(RowLimits(2, 128), product, x[:1, :1]), 2 * x[:1, :1])
    assert seen.pop() == 2


def test_sums_that_cancel_show_another_order(pair):
    """The probe is no formality: on a machine with one order for all rows it finds the largest, in another order rounding is seen."""
    x, weight = cancelling(64, 64, 1536)
    exact = (x.double() @ weight.double().t()).abs().max()
    assert exact == 0
    forwards, backwards = (x.flip(1).float() @ weight.flip(1).float().t(), x.float() @ weight.float().t())
    assert not torch.equal(forwards, backwards)
    assert row_limits(1536, 576, packed=True).most >= 32


def test_where_it_is_not_had(caplog):
    """The reason is named in the log, and the call goes on."""
    for model, reason in (
        (make_target(), "not in bfloat16"),
        (make_target("gemma2", head_dim=8).bfloat16(), "its attention"),
        (make_target("gpt2", n_embd=32, n_head=4, n_layer=4).bfloat16(), "not known"),
        (make_target(attn_implementation="eager").bfloat16(), None),
    ):
        caplog.clear()
        with caplog.at_level("DEBUG", logger="domino.acceleration.invariance"):
            assert not is_invariant(model)
        assert reason is None or reason in caplog.text
    ids = torch.randint(3, 40, (1, 7))
    target = make_target()
    out = generate(target, make_draft(), ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(out, target.generate(ids, max_new_tokens=12, do_sample=False))


def test_it_can_be_left_off(pair):
    ids = prompts(pair[2], 1)[0]
    seen = []
    text(pair, ids, invariant=False, max_new_tokens=4, budget=4, on_round=lambda row, one: seen.append(one))
    assert seen
    with pytest.raises(ValueError, match="invariant must be True or False, got 1"):
        text(pair, ids, invariant=1)


@pytest.mark.slow
def test_forty_texts(pair):
    assert alike(pair, prompts(pair[2], 10), max_new_tokens=128) == {"auto": 40, 24: 40}


@pytest.mark.slow
def test_ragged_batches_of_four(pair):
    asked = prompts(pair[2], 6)
    alone = [text(pair, ids, budget=0, max_new_tokens=96)[0, ids.shape[1] :].tolist() for ids in asked]
    for budget in (0, 8, "auto"):
        for start in range(0, len(asked), 4):
            rows = of_batch(pair, asked[start : start + 4], budget=budget, max_new_tokens=96)
            assert all(map(starts_with, rows, alone[start : start + 4])), (budget, start)


@pytest.mark.slow
@pytest.mark.parametrize("length", [440, 950])
def test_texts_across_512_and_1024_tokens(pair, length):
    story = torch.cat(prompts(pair[2], 4), dim=1)[:, :length]
    options = {"max_new_tokens": 160, "min_new_tokens": 160}
    assert alike(pair, [story], budgets=("auto", 24, 8), **options) == {"auto": 1, 24: 1, 8: 1}


def test_a_batch_whose_rows_end_apart_hands_its_cache_back(pair):
    """Rows that end early have their last token read, too, by the same attention; the next turn's text is the same with drafts."""
    target, draft, _ = pair
    ids = torch.randint(5, 40000, (2, 9), generator=torch.Generator().manual_seed(0))
    options = {"do_sample": False, "max_new_tokens": 16, "pad_token_id": 0, "return_dict_in_generate": True}
    said = target.generate(ids, **options, eos_token_id=None, custom_generate=draft.decode).sequences
    options["eos_token_id"] = [int(said[0, 14])]
    outs = [target.generate(ids, **options, custom_generate=draft.decode, budget=budget) for budget in (0, "auto")]
    assert torch.equal(outs[0].sequences, outs[1].sequences)
    for one, other in zip(outs[0].past_key_values.layers, outs[1].past_key_values.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
