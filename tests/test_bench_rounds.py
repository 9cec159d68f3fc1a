"""Whole rounds on random weights: its command, end to end on tiny shapes."""

import json

import pytest
from domino.evaluation.bench import rounds
from domino.evaluation.bench.ceilings import Ceilings
from tiny import make_draft, make_target
from transformers import LlamaConfig


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    LlamaConfig(**sizes, **heads, max_position_embeddings=1024).save_pretrained(tmp_path)
    monkeypatch.setattr(rounds, "measure_ceilings", lambda *_: Ceilings(1e9, 1e9, 1e10))  # 1 GiB would be read
    return tmp_path


@pytest.mark.parametrize("accepted", [0, 3, 16])
def test_the_command(tiny, monkeypatch, capsys, accepted):
    out = tiny / "rounds.json"
    arguments = f"--target {tiny} --dtype float32 --context 20 --accepted {accepted} --repeats 1 --out {out}"
    monkeypatch.setattr("sys.argv", ["rounds", *arguments.split()])
    rounds.main()
    found = json.loads(out.read_text())
    assert set(found["rows"]) == {"transformers", "engine"}  # and one more where there is a GPU
    assert found["drafts"] == 16
    assert found["roofline_seconds"] > 0
    assert capsys.readouterr().out.count("\n|") == 2 + len(found["rows"])


def test_too_many_to_keep(tiny, monkeypatch):
    monkeypatch.setattr("sys.argv", ["rounds", "--target", str(tiny), "--accepted", "17"])
    with pytest.raises(ValueError, match="must be 0 to 16"):
        rounds.main()


@pytest.mark.parametrize("name", ["transformers", "engine"])
def test_rounds_keep_what_they_are_forced_to(name):
    """And without force they do not, which is an error."""
    target, draft = make_target(), make_draft()
    how = rounds.loops(draft, target.device)[name]
    prompt = rounds.torch.arange(3, 12)[None]
    with rounds.forced(target, draft, 2):
        assert rounds.seconds_of_a_round(target, draft, prompt, 2, how) > 0
    assert set(draft.statistics.accepted[:-1]) == {2}
    with pytest.raises(RuntimeError, match="not 2"):
        rounds.seconds_of_a_round(target, draft, prompt, 2, how)
