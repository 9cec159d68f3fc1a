"""The head's share of a verification: its command, end to end on tiny shapes, and its bytes by hand."""

import json

from domino.evaluation.bench import counts, head
from domino.evaluation.bench.shapes import drafter_config, target_config
from transformers import LlamaConfig


def test_bytes_by_hand():
    """Qwen3-8B's head, batch 2, bfloat16: W_hh 3072 x 1024, W_s 256 x 1024, W2 151936 x 256, W_z 256 x 4096; 15 corrections."""
    draft = drafter_config(None, "qwen3-8b", target_config("qwen3-8b"))
    n, hh, s, z = draft.num_drafts, 3072 * 1024, 256 * 1024, 256 * 4096
    assert n == 16
    full = counts.rollout_work(draft, 2, 0, 2, triton=True)
    assert full.bytes == 2 * (16 * hh + 15 * (s + 151936 * 256) + z) + 2 * 15 * 151936 * 4
    pooled = counts.rollout_work(draft, 2, 1024, 2, triton=True)
    assert pooled.bytes == 2 * (16 * hh + 15 * (s + 2 * 1024 * 256) + 2 * 1024 * 256 + z) + 2 * 16 * 151936 * 4
    assert counts.rollout_work(draft, 2, 0, 2, triton=False).bytes - full.bytes == 2 * 16 * 3072 * 4096


def test_the_command(tmp_path, monkeypatch, capsys):
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    ).save_pretrained(tmp_path)
    monkeypatch.setattr(head, "measure_ceilings", lambda *_: head.Ceilings(1e9, 1e9, 1e10))  # 1 GiB would be read
    out = tmp_path / "head.json"
    arguments = f"--target {tmp_path} --dtype float32 --context 20 --batches 1,3 --pools 0,16 --drafts 7 --repeats 2 --out {out}"
    monkeypatch.setattr("sys.argv", ["head", *arguments.split()])
    head.main()
    table = capsys.readouterr().out
    assert json.loads(out.read_text())["drafts"] == 7
    rows = json.loads(out.read_text())["rows"]
    expected = {(b, p) for b in (1, 3) for p in (0, 16)}
    assert {(row["batch"], row["pool"]) for row in rows} == expected
    assert all(row["share"] == row["head_seconds"]["median"] / row["verify_seconds"]["median"] > 0 for row in rows)
    assert table.count("\n|") == 2 + len(rows)
