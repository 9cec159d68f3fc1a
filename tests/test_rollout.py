"""Drafts equal an independent straight-line re-computation of the equations (float64, 1e-9)."""

import pytest
import torch
from domino.drafting import domino as sessions
from domino.drafting.calibration import Calibration
from domino.drafting.drafter import Picking, Wanted
from domino.drafting.head import BlockHead
from tiny import make_draft, make_target, stock

PROMPT = torch.tensor([[18, 20, 36, 18, 45, 14]])


def rms(x, weight, eps):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def rotate(x, position, theta=10000.0):
    """Rotary embedding of x [heads, dim] at one position, halves paired (i, i + dim/2)."""
    half = x.shape[-1] // 2
    angle = position * (1 / theta ** (torch.arange(half).float() / half)).double()  # the table is defined in float32
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], dim=-1)


def backbone(draft, embeds, features):
    """H of one block after a context, one position at a time; embeds [B, D], features [T, F*D]."""
    c, eps, w = draft.config, draft.config.rms_norm_eps, draft.state_dict()
    context = rms(features @ w["fc.weight"].T, w["hidden_norm.weight"], eps)
    total, group = len(context), c.num_attention_heads // c.num_key_value_heads
    h = embeds
    for i in range(c.num_hidden_layers):
        p = {k.removeprefix(f"layers.{i}."): v for k, v in w.items() if k.startswith(f"layers.{i}.")}
        x = rms(h, p["input_layernorm.weight"], eps)
        keys, values = [], []
        for position, source in enumerate([*context, *x]):
            k = (p["self_attn.k_proj.weight"] @ source).view(c.num_key_value_heads, c.head_dim)
            keys.append(rotate(rms(k, p["self_attn.k_norm.weight"], eps), position))
            values.append((p["self_attn.v_proj.weight"] @ source).view(c.num_key_value_heads, c.head_dim))
        rows = []
        for slot, source in enumerate(x):
            q = (p["self_attn.q_proj.weight"] @ source).view(c.num_attention_heads, c.head_dim)
            q = rotate(rms(q, p["self_attn.q_norm.weight"], eps), total + slot)
            heads = []
            for head in range(c.num_attention_heads):
                scores = torch.stack([q[head] @ k[head // group] for k in keys]) / c.head_dim**0.5
                heads.append(sum(s * v[head // group] for s, v in zip(scores.softmax(0), values, strict=True)))
            rows.append(p["self_attn.o_proj.weight"] @ torch.cat(heads))
        h = h + torch.stack(rows)
        x = rms(h, p["post_attention_layernorm.weight"], eps)
        gate = x @ p["mlp.gate_proj.weight"].T
        h = h + (gate * gate.sigmoid() * (x @ p["mlp.up_proj.weight"].T)) @ p["mlp.down_proj.weight"].T
    return rms(h, w["norm.weight"], eps)


def straight_line(draft, target, ids, path=None):
    """Logits of every draft of the first round, greedy or along a path; ids [1, n], the last one is the anchor."""
    c, w = draft.config, draft.state_dict()
    table, head = target.get_input_embeddings().weight, target.get_output_embeddings().weight
    states = target(ids[:, :-1], output_hidden_states=True).hidden_states
    features = torch.cat([states[i + 1][0] for i in c.target_layer_ids], dim=-1)
    block = [ids[0, -1].item()] + [c.mask_token_id] * (c.block_size - 1)
    hidden = backbone(draft, table[block], features)

    state, token, out = torch.zeros(c.gru_hidden_dim, dtype=torch.float64), ids[0, -1], []
    g = c.gru_hidden_dim
    slots = range(c.block_size) if c.shift_label else range(1, c.block_size)
    for i, slot in enumerate(slots):
        a, b = w["prefix_gru.weight_ih_l0"] @ table[token], w["prefix_gru.weight_hh_l0"] @ state
        r, z = (a[:g] + b[:g]).sigmoid(), (a[g : 2 * g] + b[g : 2 * g]).sigmoid()
        state = (1 - z) * torch.tanh(a[2 * g :] + r * b[2 * g :]) + z * state
        logits = head @ hidden[slot]
        if i >= c.pure_draft_prefix_len:
            u = w["embed_proj.0.weight"] @ torch.cat([hidden[slot], state])
            logits = logits + w["embed_proj.2.weight"] @ (u * u.sigmoid())
        out.append(logits)
        if path is not None and i == len(path):
            break
        token = logits.argmax() if path is None else path[i]
    return torch.stack(out)


@pytest.fixture
def blocks(monkeypatch):
    """Logits [R, W, vocab] of every step of the head, a list for each block."""
    seen = []

    class Spy(BlockHead):
        def begin(self, anchors):
            seen.append([])
            return super().begin(anchors)

        def logits(self, place, lanes):
            assert place == len(seen[-1])
            out = super().logits(place, lanes)
            seen[-1].append(out)
            return out

    monkeypatch.setattr(sessions, "BlockHead", Spy)
    return seen


@torch.no_grad()
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_drafts_follow_the_equations(shift, prefix, blocks):
    target = make_target("llama")
    draft = make_draft(shift_label=shift, pure_draft_prefix_len=prefix)
    seen = []

    class Spy(draft.generator_class):
        def _draft_block(self, *args):
            drafts, q = super()._draft_block(*args)
            assert q is None
            seen.append((drafts, torch.cat(blocks[-1], dim=1)))
            return drafts, q

    stock(draft).generator_class = Spy
    out = target.generate(PROMPT, assistant_model=draft, max_new_tokens=20, do_sample=False, eos_token_id=None)

    expected = straight_line(draft, target, out[:, : PROMPT.shape[1] + 1])
    drafts, logits = seen[0]
    assert logits.dtype == torch.float64
    assert (logits[0] - expected).abs().max() <= 1e-9
    assert torch.equal(drafts[0], expected.argmax(-1))

    # A later round: its context came in pieces, through the cache.
    at = PROMPT.shape[1] + 1
    for (_, logits), accepted in zip(seen, draft.statistics.accepted, strict=False):
        expected = straight_line(draft, target, out[:, :at])[: logits.shape[1]]
        assert (logits[0] - expected).abs().max() <= 1e-9
        at += accepted + 1


@torch.no_grad()
@pytest.mark.parametrize("shift", [True, False])
@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize("samples", [False, True])
def test_trees_follow_the_equations_on_every_path(shift, prefix, samples, blocks):
    """Each lane of a tree is drafted as if its path were all there is; rows of different lengths, nodes chosen and drawn."""
    target = make_target("llama")
    draft = make_draft(shift_label=shift, pure_draft_prefix_len=prefix)
    texts = [PROMPT, PROMPT[:, 2:]]
    session = draft.open(target, 2, PROMPT.device)
    states = [
        torch.cat([target(ids[:, :-1], output_hidden_states=True).hidden_states[i + 1] for i in [0, 2]], dim=-1)[0]
        for ids in texts
    ]
    session.add(torch.nn.utils.rnn.pad_sequence(states, batch_first=True), [len(state) for state in states])
    depths = [draft.config.num_drafts, 2]
    torch.manual_seed(0)
    wanted = Wanted(12, depths, 0.0, chain=False, calibration=Calibration())
    proposal = session.propose(torch.stack([ids[0, -1:] for ids in texts]), wanted, Picking(samples))
    assert len(blocks) == 1
    for row, (ids, tree) in enumerate(zip(texts, proposal.trees, strict=True)):
        assert 6 <= len(tree) <= 12
        assert max(tree.depths()) <= depths[row]
        assert not tree.is_chain()
        for slot, nodes in enumerate(tree.children()):
            if not nodes:
                continue
            path = [tree.tokens[node] for node in tree.path(slot - 1)]
            expected = straight_line(draft, target, ids, path)[-1]
            distance = (blocks[0][len(path)][row] - expected).abs().amax(-1)  # of each lane
            assert distance.min() <= 1e-9
            said = [tree.tokens[node] for node in nodes]
            if samples:
                q = proposal.law.q[row, proposal.law.rows[row][slot]]
                assert (q - expected.softmax(-1)).abs().max() <= 1e-9
            else:
                assert set(said) == set(expected.topk(len(said)).indices.tolist())


def test_the_head_matters(blocks):
    """With the correction switched off the logits are others; otherwise the test above would say little."""
    target = make_target("llama")

    def first_logits(prefix):
        blocks.clear()
        draft = stock(make_draft(pure_draft_prefix_len=prefix))
        target.generate(PROMPT, assistant_model=draft, max_new_tokens=8, do_sample=False)
        return torch.cat(blocks[0], dim=1)

    with_head, without = first_logits(1), first_logits(5)
    assert torch.equal(with_head[:, 0], without[:, 0])  # the pure prefix
    assert (with_head[:, 1:] - without[:, 1:]).abs().max() > 0.1
