"""A tiny target, its tokenizer and distilled answers on disk, and a config that trains a drafter on them."""

import json
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase

import torch
import yaml
from domino.training.features import capture
from domino.training.shards import shard_path, write_shard
from tiny import HIDDEN, VOCAB, make_target
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

LAYERS = [0, 2]
SPECIAL = {"<pad>": 0, "<bos>": 1, "<eos>": 2, "<unk>": 4}
TEMPLATE = "{% for m in messages %}<bos> {{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w3 {% endif %}"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words w3, w5 … w46 and four special tokens, ids 0 … 46; id 47 is left as a reserved row of the target's embedding."""
    words = {f"w{i}": i for i in range(VOCAB - 1)} | SPECIAL
    words = {word: i for word, i in words.items() if word in SPECIAL or i not in SPECIAL.values()}
    core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=TEMPLATE, **special)


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level, like real ones: tokens 3 … 38 are A … Z, a … j; 39 … 46 are two letters each, which no text is cut into."""
    letters = [*ascii_uppercase, *ascii_lowercase[:10], "La", "Lb", "Lc", "Ca", "Cb", "ba", "bb", "Ob"]
    words = {"<pad>": 0, "<s>": 1, "</s>": 2, **{letter: i + 3 for i, letter in enumerate(letters)}}
    core = Tokenizer(models.BPE(words, [], unk_token="<pad>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, padding_side="left", **special)


def save_target(folder: Path, **changes):
    """A float32 target with its tokenizer."""
    target = make_target(**changes).float()
    target.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return target


def save_shards(folder: Path, target, shards: int = 3, rows: int = 8, length: int = 24, prompt: int = 6) -> Path:
    """Random sequences with the target's own features and last hidden states."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for number in range(shards):
        ids = torch.randint(3, VOCAB - 1, (rows, length), generator=generator)
        with torch.no_grad(), capture(target, LAYERS, last=True) as kept:
            target(ids)
        tensors = {"features": kept.features(), "last_hidden": kept.last_hidden()}
        for tensor in tensors.values():
            tensor[:, -1] = 0
        tensors = {name: t.flatten(0, 1).bfloat16().contiguous() for name, t in tensors.items()}
        table = [{"input_ids": row, "prompt_length": prompt} for row in ids.tolist()]
        write_shard(shard_path(folder, number), table, tensors)
    (folder / "provenance.json").write_text(json.dumps({"target_layer_ids": LAYERS}))
    return folder


def save_config(path: Path, target: Path, data: Path, out: Path, /, **sections) -> Path:
    """A config of a few steps in float32; `sections` are merged in, e.g. `trainer={"max_steps": 3}`."""
    config = {
        "target": str(target),
        "target_dtype": "float32",
        "data": str(data),
        "output_dir": str(out),
        "held_out_shards": 1,
        "drafter": {
            "start": "random",
            "num_hidden_layers": 2,
            "block_size": 4,
            "gru_hidden_dim": 16,
            "emb_dim": 8,
            "target_layer_ids": LAYERS,
        },
        "objective": {"num_anchors": 6, "max_length": 64, "gamma": 4.0, "chunk_blocks": 16},
        "trainer": {
            "seed": 1,
            "use_cpu": True,
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "warmup_steps": 0,
            "logging_steps": 1,
            "save_steps": 2,
            "report_to": "none",
            "disable_tqdm": True,
        },
    }
    for name, values in sections.items():
        config[name] = {**config[name], **values} if isinstance(config.get(name), dict) else values
    path.write_text(yaml.safe_dump(config))
    return path


def losses(out: Path) -> list[float]:
    """Logged training losses of a run, by step."""
    states = sorted(out.glob("checkpoint-*/trainer_state.json"), key=lambda p: int(p.parent.name.split("-")[1]))
    history = json.loads(states[-1].read_text())["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


__all__ = ["HIDDEN", "LAYERS", "VOCAB", "losses", "make_tokenizer", "save_config", "save_shards", "save_target"]
