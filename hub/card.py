"""The model card of an exported drafter."""

from __future__ import annotations

from huggingface_hub import ModelCard, ModelCardData

from ..configuration_domino import DominoConfig

TEMPLATE = """---
{{ card_data }}
---

# Domino drafter for {{ base_model }}

Makes `{{ base_model }}` decode faster and keeps its text: this drafter proposes several tokens in one pass, a light causal
head makes each depend on those before it, and the target verifies all of them in one forward
([Domino, arXiv 2605.29707](https://arxiv.org/abs/2605.29707)).

```python
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

target = AutoModelForCausalLM.from_pretrained("{{ base_model }}", dtype="auto")
draft = AutoModel.from_pretrained("{{ repo_id }}", trust_remote_code=True, dtype="auto")
tokenizer = AutoTokenizer.from_pretrained("{{ base_model }}")

inputs = tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is 12 * 7?"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
)
out = target.generate(**inputs, assistant_model=draft, max_new_tokens=128)
print(tokenizer.decode(out[0]), draft.statistics.acceptance_length)
```

The text, greedy or sampled with the same seed:

- float32, float64: equal to plain `generate`, token for token.
- bfloat16 on a CPU: bit for bit the same with drafts and without, where the setting `invariant` holds; equal to plain
  `generate` up to near ties (two tokens with almost the same logit).
- bfloat16 or float16 elsewhere, such as on a GPU: equal to plain `generate` up to near ties.

Sampled output has the target's distribution in any case. The same folder serves in SGLang as a `DFLASH` drafter, with
`--trust-remote-code`.

## Acceptance

{{ results }}

τ is the mean of (accepted + 1) per target forward after the prefill, with {{ drafts }} drafts per round.

## Trained for

{{ trained_for }}

## Shape

{{ layers }} layers, block {{ block }}, `shift_label` {{ shift }}, target layers {{ layer_ids }}, GRU {{ gru }}, rank {{ rank }}.
"""


def model_card(config: DominoConfig, facts: dict) -> ModelCard:
    """Render the card.

    Args:
        config: of the drafter.
        facts: `repo_id`, `base_model`, `license`, `language` (list), `results` and `trained_for` (Markdown).
    """
    data = ModelCardData(
        base_model=facts["base_model"],
        base_model_relation="adapter",
        license=facts["license"],
        language=facts["language"],
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "domino", "dflash", "custom_code"],
    )
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        **{k: facts[k] for k in ("repo_id", "base_model", "results", "trained_for")},
        drafts=config.num_drafts,
        layers=config.num_hidden_layers,
        block=config.block_size,
        shift=str(config.shift_label).lower(),
        layer_ids=config.target_layer_ids,
        gru=config.gru_hidden_dim,
        rank=config.emb_dim,
    )
