"""Tiny targets of several families in float64, and tiny drafters: random, always right, always wrong."""

import torch
from domino import DominoConfig, DominoModel
from domino.generation.candidate_generator import DominoCandidateGenerator
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

VOCAB, HIDDEN, LAYERS = 48, 32, 4
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "gemma": {"head_dim": 8},
    "mistral": {"sliding_window": 8},
    "gpt_neox": {},
}


def make_target(family: str = "llama", seed: int = 0, **changes):
    """A random target whose logits are close together (small spread), so that ties and argmax changes are frequent."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,
        **SPECIAL,
        **FAMILIES.get(family, {}),
        **changes,
    }
    return AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**shape)).double().eval()


def make_draft(seed: int = 1, cls=DominoModel, **changes):
    """A random drafter for `make_target()`."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "block_size": 5,
        "num_target_layers": LAYERS,
        "target_layer_ids": [0, 2],
        "mask_token_id": VOCAB - 1,
        "gru_hidden_dim": 16,
        "emb_dim": 8,
        "initializer_range": 0.2,
        **SPECIAL,
    }
    draft = cls(DominoConfig(**{**shape, **changes}))
    torch.nn.init.normal_(draft.embed_proj[2].weight)  # a head that matters
    return draft.double().eval()


class OracleGenerator(DominoCandidateGenerator):
    """Drafts what the target itself will say, shifted by `offset` tokens of the vocabulary: 0 is always right."""

    offset = 0

    def _draft_block(self, input_ids, features, count):
        super()._draft_block(input_ids, features, count)  # keeps the context cache going
        ids, logits = input_ids, []
        for _ in range(count):
            real = ids.ne(0).cumsum(-1).clamp(max=1)  # left padding
            out = self.target(ids, attention_mask=real, position_ids=(real.cumsum(-1) - 1).clamp(min=0))
            last = out.logits[:, -1].float()
            logits.append(self.logits_processor(ids, last) if self.logits_processor else last)
            token = (logits[-1].argmax(-1, keepdim=True) + self.offset) % VOCAB
            if self._ends(torch.cat([ids, token], dim=-1)):
                break
            ids = torch.cat([ids, token], dim=-1)
        return ids[:, input_ids.shape[1] :], torch.stack(logits, dim=1)


class WrongGenerator(OracleGenerator):
    """Never right."""

    offset = 1


class RightDraft(DominoModel):
    generator_class = OracleGenerator


class WrongDraft(DominoModel):
    generator_class = WrongGenerator


def stock(draft):
    """The drafter, to be driven by transformers' own loop."""
    return draft.configure(loop="transformers")


DRAFTS = {"random": DominoModel, "right": RightDraft, "wrong": WrongDraft}
