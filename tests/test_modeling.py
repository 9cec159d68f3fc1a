"""Model: cache equals no cache, saving and loading in both layouts, errors that list what is wrong."""

import json

import pytest
import torch
from domino import DominoModel
from safetensors.torch import load_file, save_file
from transformers import AutoModel, DynamicCache

PUBLISHED_ONLY = ("projector_type", "shift_label", "pure_draft_prefix_len", "gru_hidden_dim", "emb_dim")


@pytest.fixture
def saved(tmp_path, draft):
    draft.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def as_published(folder, rename):
    """Rewrite a saved drafter in the published layout, tensor names through `rename`."""
    config = json.loads((folder / "config.json").read_text())
    nested = {name: config.pop(name) for name in PUBLISHED_ONLY}
    nested |= {name: config.pop(name) for name in ("target_layer_ids", "mask_token_id")}
    config |= {"model_type": "qwen3", "architectures": ["DominoDraftModel"], "dflash_config": nested}
    config["auto_map"] = {"AutoModel": "dflash.DFlashDraftModel"}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(folder / "model.safetensors")
    save_file({rename(k): v for k, v in tensors.items()}, folder / "model.safetensors", metadata={"format": "pt"})


def same_weights(a, b):
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_cached_context_equals_whole_context(draft):
    torch.manual_seed(0)
    features, block = torch.randn(1, 9, 64).double(), torch.randn(1, 5, 32).double()
    whole = draft(block, features).last_hidden_state
    cache = DynamicCache(config=draft.config)
    for start, end in ((0, 4), (4, 5), (5, 9)):
        out = draft(block, features[:, start:end], past_key_values=cache).last_hidden_state
        cache.crop(-block.shape[1])
    assert cache.get_seq_length() == 9
    torch.testing.assert_close(out, whole, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_session_reads_its_context_in_pieces(target, draft):
    """Read at once, with the next block, or behind a block: rows of any lengths are as if each were whole and alone."""
    torch.manual_seed(0)
    features, anchors = torch.randn(2, 9, 64).double(), torch.tensor([[7], [30]])
    session, lengths = draft.open(target, 2, anchors.device), [0, 0]
    steps = [("read", [4, 4]), ("add", [2, 1]), ("add", [0, 1]), ("block", None), ("add", [1, 3]), ("block", None)]
    for step, counts in steps:
        if step == "block":
            block = session.block(anchors, draft.config.num_drafts)
            assert session.cache.lengths == lengths
            for row, length in enumerate(lengths):
                whole = draft(masked(target, draft, anchors[row]), features[row : row + 1, :length]).last_hidden_state[
                    0
                ]
                torch.testing.assert_close(block.hidden[row], whole[draft.config.first_slot :], rtol=0, atol=1e-12)
                logits = target.get_output_embeddings()(block.hidden[row])
                torch.testing.assert_close(block.base[row], logits, rtol=0, atol=1e-12)
            continue
        chunk = torch.full((2, max(counts), 64), torch.nan).double()  # what is beyond a row's count is never looked at
        for row, count in enumerate(counts):
            chunk[row, :count] = features[row, lengths[row] : lengths[row] + count]
        getattr(session, step)(chunk.nan_to_num(99.0), counts)
        lengths = [length + count for length, count in zip(lengths, counts, strict=True)]


def masked(target, draft, anchor):
    ids = [int(anchor)] + [draft.config.mask_token_id] * (draft.config.block_size - 1)
    return target.get_input_embeddings()(torch.tensor([ids]))


def test_padding_mask_equals_leaving_out(draft):
    torch.manual_seed(0)
    features, block = torch.randn(1, 6, 64).double(), torch.randn(1, 5, 32).double()
    mask = torch.tensor([[0, 0] + [1] * 9])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = draft(block, features, mask, positions).last_hidden_state
    torch.testing.assert_close(padded, draft(block, features[:, 2:]).last_hidden_state, rtol=0, atol=1e-12)


def test_round_trip(saved, draft):
    assert same_weights(DominoModel.from_pretrained(saved), draft)
    assert same_weights(AutoModel.from_pretrained(saved), draft)  # registered, so no remote code is needed


@pytest.mark.parametrize(
    "rename",
    [
        lambda k: k,
        lambda k: f"model.{k}",
        lambda k: k.replace("fc.", "encoder.fc.").replace("hidden_norm.", "encoder.output_norm_enc."),
    ],
    ids=["as is", "model. prefix", "aliases"],
)
def test_published_layout_loads_whole(saved, draft, rename):
    as_published(saved, rename)
    assert same_weights(DominoModel.from_pretrained(saved), draft)


def test_absent_and_unknown_weights_are_listed(saved):
    tensors = load_file(saved / "model.safetensors")
    del tensors["layers.1.mlp.up_proj.weight"]
    tensors["prefix_gru.bias_ih_l0"] = torch.zeros(48)
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError, match=r"Absent: \['layers.1.mlp.up_proj.weight'\].*Unknown: \['prefix_gru.bias_ih_l0'\]"
    ):
        DominoModel.from_pretrained(saved)


def test_truncated_weights(saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ValueError, match="damaged or truncated"):
        DominoModel.from_pretrained(saved)


def test_wrong_shape(saved):
    tensors = load_file(saved / "model.safetensors")
    tensors["embed_proj.2.weight"] = tensors["embed_proj.2.weight"][:-1]
    save_file(tensors, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"Of another shape: \['embed_proj.2.weight'\]"):
        DominoModel.from_pretrained(saved)
