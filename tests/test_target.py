"""Targets of several families: the embedding and head that training sees, mask tokens, the drafter shaped after them."""

from collections import Counter

import pytest
import torch
from corpus import make_tokenizer
from domino.configuration_domino import DominoConfig
from domino.embedded.smollm2 import target_folder
from domino.training.config import DrafterSettings
from domino.training.features import capture
from domino.training.target import TargetHead, check_tokens, choose_mask_token, load_target, make_drafter
from domino.training.warm_start import warm_start
from tiny import FAMILIES, VOCAB, make_draft, make_target
from tokenizers import Tokenizer, models
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

SMALL = {"num_hidden_layers": 2, "block_size": 4, "gru_hidden_dim": 8, "emb_dim": 4, "target_layer_ids": [0, 2]}


@pytest.mark.parametrize("family", [*FAMILIES, "gemma2", "olmo2", "phi3"])
@pytest.mark.parametrize("tied", [True, False])
def test_training_sees_what_the_target_sees(family, tied):
    """The embedding is the target's input (scaled where the family scales), features and last hidden state its own."""
    target = make_target(family, tie_word_embeddings=tied) if family in FAMILIES else make_other(family, tied)
    head, ids = TargetHead.of(target), torch.randint(3, VOCAB, (2, 9))
    with torch.no_grad(), capture(target, [0, 2], last=True) as kept:
        out = target(ids, output_hidden_states=True)
    states = out.hidden_states
    assert torch.equal(head.embed(ids), states[0])
    assert torch.equal(kept.features(), torch.cat([states[1], states[3]], dim=-1))
    logits = head.logits(kept.last_hidden())
    cap = getattr(target.config, "final_logit_softcapping", None)
    assert torch.allclose(torch.tanh(logits / cap) * cap if cap else logits, out.logits, atol=1e-5)
    some = torch.tensor([7, 3, 40])
    assert torch.allclose(head.logits(kept.last_hidden(), some), logits[..., some])


def make_other(family, tied, **changes):
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    shape |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    shape |= {"head_dim": 8} if family.startswith("gemma") else {}
    config = CONFIG_MAPPING[family](**shape, **changes, tie_word_embeddings=tied)
    return AutoModelForCausalLM.from_config(config).double().eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_drafter_for_every_family(family):
    target = make_target(family)
    start = "target" if family in ("llama", "mistral") else "random"
    draft = make_drafter(target, DrafterSettings(**SMALL, start=start), VOCAB - 1)
    assert draft.config.target_layer_ids == [0, 2]
    assert draft.config.hidden_size == target.config.hidden_size
    assert not draft.embed_proj[2].weight.any()
    assert draft(torch.randn(1, 4, 32), torch.randn(1, 5, 64)).last_hidden_state.isfinite().all()
    if getattr(target.config, "rms_norm_eps", None) is None:
        assert draft.config.rms_norm_eps == DominoConfig().rms_norm_eps


def test_warm_start_needs_equal_shapes_and_separate_projections():
    with pytest.raises(ValueError, match="gate_proj is .* in the drafter but"):
        warm_start(make_draft(intermediate_size=48), make_target())
    with pytest.raises(ValueError, match="drafter.start: random"):
        warm_start(make_draft(), make_target("gpt_neox"))
    with pytest.raises(ValueError, match="num_hidden_layers is 5 but the target has 4"):
        warm_start(make_draft(num_hidden_layers=5), make_target())
    draft = make_draft()
    warm_start(draft, make_target())
    assert torch.equal(draft.fc.weight[:, -32:], torch.eye(32).double())


@pytest.mark.parametrize(
    "family", ["gemma2", "gemma3_text", "olmo2", "phi", "phi3", "starcoder2", "mixtral", "stablelm"]
)
def test_other_layers_start_at_random(family):
    """Copying norms that mean something else (Gemma's weight is an offset from 1) would give a drafter that is dead."""
    target = make_other(family, True)
    with pytest.raises(ValueError, match="not built like a draft layer.*set drafter.start: random"):
        make_drafter(target, DrafterSettings(**SMALL), VOCAB - 1)
    draft = make_drafter(target, DrafterSettings(**SMALL, start="random"), VOCAB - 1)
    assert draft(torch.randn(1, 4, 32), torch.randn(1, 5, 64)).last_hidden_state.isfinite().all()


def test_gemma_starts_at_random():
    with pytest.raises(ValueError, match="not built like a draft layer"):
        make_drafter(make_target("gemma"), DrafterSettings(**SMALL), VOCAB - 1)


def test_shapes_the_target_cannot_give():
    with pytest.raises(ValueError, match="drafter.num_feature_layers is 5, too many for the target's 4 layers"):
        make_drafter(make_target(), DrafterSettings(), VOCAB - 1)
    opt = make_other("opt", True, word_embed_proj_dim=32)
    del opt.config.intermediate_size  # OPT's own name is ffn_dim
    with pytest.raises(ValueError, match="intermediate_size None, not one number"):
        make_drafter(opt, DrafterSettings(**SMALL, start="random"), VOCAB - 1)


def test_a_head_with_bias_in_another_dtype():
    """Phi's head has a bias; a bfloat16 target trains a float32 drafter without autocast on a processor."""
    head = TargetHead.of(make_other("phi", False).bfloat16())
    torch.nn.init.normal_(head.lm_head.bias)
    hidden = torch.randn(3, 32)
    logits = head.logits(hidden)
    assert logits.dtype == torch.float32
    assert not logits.requires_grad
    assert torch.allclose(head.lm_head.float()(hidden), logits, atol=1e-5)


def test_continuing_a_drafter_that_does_not_fit_is_refused(tmp_path):
    target = make_target()
    make_drafter(target, DrafterSettings(**SMALL, start="random"), VOCAB - 1).save_pretrained(tmp_path / "d")
    settings = DrafterSettings(**SMALL, start=str(tmp_path / "d"))
    assert make_drafter(target, settings, VOCAB - 1).dtype == torch.float32
    with pytest.raises(ValueError, match="block_size is 4 there, 5 here"):
        make_drafter(target, DrafterSettings(**{**SMALL, "block_size": 5}, start=str(tmp_path / "d")), VOCAB - 1)
    with pytest.raises(ValueError, match="must be 'target', 'random', a folder or a Hub id, got 'nowhere'"):
        make_drafter(target, DrafterSettings(**SMALL, start="nowhere"), VOCAB - 1)


def test_mask_tokens():
    tokenizer, target = make_tokenizer(), make_target()
    assert len(tokenizer) == VOCAB - 1
    assert choose_mask_token(tokenizer, target, "auto") == VOCAB - 1  # the padded row, as Qwen3's 151669
    assert choose_mask_token(tokenizer, target, VOCAB - 1) == VOCAB - 1
    for wrong, message in (
        (VOCAB, "0 … 47, got 48"),
        (2, "'<eos>', which marks ends"),
        (9, "ordinary token 'w9'"),
        (3, "chat template"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_mask_token(tokenizer, target, wrong)
    full = make_target(vocab_size=VOCAB - 1)
    with pytest.raises(ValueError, match="no reserved token left"):
        choose_mask_token(tokenizer, full, "auto")
    tokenizer.add_special_tokens({"additional_special_tokens": ["w11"]})
    assert choose_mask_token(tokenizer, full, "auto") == 11
    tokenizer.mask_token = "w12"
    assert choose_mask_token(tokenizer, full, "auto") == 12


def test_ids_that_a_tokenizer_leaves_out_are_not_free():
    words = {"a": 0, "b": 1, "c": 9}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")))
    assert len(tokenizer) == 3  # a count, not the first free id
    assert choose_mask_token(tokenizer, make_target(), "auto") == 10
    with pytest.raises(ValueError, match="ordinary token 'c'"):
        choose_mask_token(tokenizer, make_target(), 9)


def test_data_of_another_tokenizer_is_refused():
    check_tokens(Counter({VOCAB - 1: 2}), make_target())
    with pytest.raises(ValueError, match="token id 48 but the target's vocabulary has 48.*another tokenizer"):
        check_tokens(Counter({3: 5, VOCAB: 1}), make_target())


def test_mask_token_of_smollm2():
    target = make_target(vocab_size=49152)
    tokenizer = AutoTokenizer.from_pretrained(target_folder())
    assert choose_mask_token(tokenizer, target, "auto") == 16  # <empty_output>


def test_wrong_targets_are_refused(tmp_path):
    shape = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": 32}
    T5ForConditionalGeneration(T5Config(**shape)).save_pretrained(tmp_path / "t5")
    with pytest.raises(ValueError, match="encoder-decoder model"):
        load_target(str(tmp_path / "t5"), "float32")
    MambaForCausalLM(MambaConfig(vocab_size=32, hidden_size=8, num_hidden_layers=1)).save_pretrained(tmp_path / "mamba")
    with pytest.raises(ValueError, match="keeps a recurrent state"):
        load_target(str(tmp_path / "mamba"), "float32")
    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=8, n_layer=1, n_head=2)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="features cannot be read"):
        load_target(str(tmp_path / "gpt2"), "float32")
    make_target(vocab_size=20).save_pretrained(tmp_path / "small")
    make_tokenizer().save_pretrained(tmp_path / "small")
    with pytest.raises(ValueError, match="47 ids but the model has 20 embeddings"):
        load_target(str(tmp_path / "small"), "float32")


def test_the_embedded_target_goes_by_its_name():
    target, tokenizer = load_target("smollm2", "bfloat16")
    assert target.config.num_hidden_layers == 30
    assert tokenizer.chat_template
