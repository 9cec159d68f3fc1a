"""transformers' assisted loop: greedy output equals plain `generate`, whatever the options, the family and the drafter."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import DRAFTS, FAMILIES, make_draft, make_target, stock

TARGETS = {family: make_target(family) for family in FAMILIES}
OPTIONS = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(1, 24)},
    optional={
        "min_new_tokens": st.integers(0, 12),
        "repetition_penalty": st.sampled_from([1.1, 1.7]),
        "no_repeat_ngram_size": st.integers(2, 3),
        "suppress_tokens": st.lists(st.integers(3, 40), min_size=1, max_size=5),
        "bad_words_ids": st.just([[5], [6, 7]]),
        "eos_token_id": st.lists(st.integers(2, 30), min_size=1, max_size=8, unique=True),
        "num_assistant_tokens": st.integers(1, 4),
        "exponential_decay_length_penalty": st.just((4, 1.2)),
        "forced_eos_token_id": st.just(2),
    },
)
LAYOUTS = st.tuples(st.booleans(), st.integers(0, 2), st.integers(2, 7))


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    options=OPTIONS,
    layout=LAYOUTS,
    kind=st.sampled_from(sorted(DRAFTS)),
    prompt=st.lists(st.integers(3, 46), min_size=1, max_size=9),
    padding=st.integers(0, 3),
)
def test_equals_plain_generate(family, options, layout, kind, prompt, padding):
    shift, prefix, block = layout
    target = TARGETS[family]
    drafts = block if shift else block - 1
    draft = make_draft(cls=DRAFTS[kind], shift_label=shift, pure_draft_prefix_len=min(prefix, drafts), block_size=block)
    stock(draft)
    ids = torch.tensor([[0] * padding + prompt])
    mask = torch.tensor([[0] * padding + [1] * len(prompt)])
    options = {"attention_mask": mask, "do_sample": False, **options}

    plain = target.generate(ids, **options)
    assert torch.equal(target.generate(ids, assistant_model=draft, **options), plain)

    emitted = plain.shape[1] - ids.shape[1]
    counts = draft.statistics
    assert sum(counts.accepted) + counts.rounds + 1 == emitted  # the prefill emits one token
    assert all(
        a <= d <= options.get("num_assistant_tokens", drafts)
        for a, d in zip(counts.accepted, counts.drafted, strict=True)
    )
    if kind == "wrong":
        assert sum(counts.accepted) == 0
    if kind == "right":
        assert counts.accepted == counts.drafted
