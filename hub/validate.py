"""Whether a folder is a complete drafter that transformers and SGLang 0.5.23 both load as it is.

SGLang's loader leaves an absent backbone tensor uninitialised and skips unknown ones without a word, so the check is
stricter than the loader: exact tensor set, exact shapes, one dtype.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.dynamic_module_utils import get_relative_import_files

from ..configuration_domino import DominoConfig, flatten_published
from ..modeling_domino import DominoModel

# What SGLang reads by name; a value left out would be its default, not ours.
STATED = [
    "projector_type",
    "shift_label",
    "pure_draft_prefix_len",
    "gru_hidden_dim",
    "emb_dim",
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "num_target_layers",
    "rope_parameters",
]


def validate(folder: str | Path) -> list[str]:
    """Everything that is wrong with a drafter folder, one sentence each; an empty list means it is fine."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        return [f"{folder}: no config.json"]
    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = DominoConfig(**{k: v for k, v in flatten_published(raw).items() if k != "model_type"})
        with torch.device("meta"):
            expected = {name: tuple(t.shape) for name, t in DominoModel(config).state_dict().items()}
    except Exception as error:  # a config class reports any bad field by raising; here it is a finding
        return [f"config.json: {error}"]
    return _contract(raw, config) + _tensors(folder, expected) + _code(folder, raw)


def _contract(raw: dict, config: DominoConfig) -> list[str]:
    """SGLang 0.5.23's rules beyond our own cross-checks (its `dflash_utils.py`)."""
    problems = []
    if raw.get("architectures") != ["DFlashDraftModel"]:
        problems.append(f"config.json: architectures must be ['DFlashDraftModel'], got {raw.get('architectures')!r}")
    if config.pure_draft_prefix_len != 1:
        problems.append(f"config.json: SGLang needs pure_draft_prefix_len 1, got {config.pure_draft_prefix_len}")
    if config.attention_bias:
        problems.append("config.json: attention_bias must be false")
    if raw.get("dtype", raw.get("torch_dtype")) != "bfloat16":
        problems.append(f"config.json: dtype must be 'bfloat16', got {raw.get('dtype')!r}")
    stated = {**raw, **raw.get("dflash_config", {})}
    for name in STATED:
        if name not in stated:
            problems.append(f"config.json: {name} must be stated")
    return problems


def _tensors(folder: Path, expected: dict[str, tuple[int, ...]]) -> list[str]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return [f"{folder}: no *.safetensors file"]
    problems, found, dtypes = [], {}, {}
    if [f.name for f in files] != ["model.safetensors"] and not (folder / "model.safetensors.index.json").is_file():
        problems.append(
            f"{[f.name for f in files]}: without model.safetensors.index.json only model.safetensors is read"
        )
    for file in files:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 (not a dict)
                    part = handle.get_slice(name)
                    if name in found:
                        problems.append(f"tensor in two files: {name}")
                    if not handle.get_tensor(name).isfinite().all():
                        problems.append(f"{name}: holds values that are not finite")
                    found[name], dtypes[name] = tuple(part.get_shape()), part.get_dtype()
        except SafetensorError as error:
            problems.append(f"{file.name}: damaged or truncated ({error})")
    problems += [f"tensor absent: {name}" for name in sorted(expected.keys() - found.keys())]
    problems += [f"tensor unknown: {name}" for name in sorted(found.keys() - expected.keys())]
    for name in sorted(expected.keys() & found.keys()):
        if found[name] != expected[name]:
            problems.append(f"{name}: shape must be {list(expected[name])}, got {list(found[name])}")
        if dtypes[name] != "BF16":
            problems.append(f"{name}: dtype must be BF16, got {dtypes[name]}")
    return problems


def _code(folder: Path, raw: dict) -> list[str]:
    """A folder of our own layout carries its code; one in the published layout is read by the installed package."""
    if raw.get("model_type") != DominoConfig.model_type:
        return []
    wanted = {"AutoConfig": "configuration_domino.DominoConfig", "AutoModel": "modeling_domino.DominoModel"}
    problems = []
    if raw.get("auto_map") != wanted:
        problems.append(f"config.json: auto_map must be {wanted}, got {raw.get('auto_map')!r}")
    modeling = folder / "modeling_domino.py"
    if not modeling.is_file():
        return [*problems, "modeling_domino.py: absent"]
    try:
        get_relative_import_files(str(modeling))
    except FileNotFoundError as error:
        problems.append(f"code file absent: {error.filename}")
    return problems
