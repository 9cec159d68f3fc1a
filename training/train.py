"""`domino train`: from a config and distilled answers to a drafter."""

from __future__ import annotations

from pathlib import Path

import torch
import yaml
from transformers import TrainingArguments

from ..evaluation import tasks
from .callbacks import RealAcceptance, StopOnInterrupt, last_checkpoint
from .config import EvaluationSettings, TrainConfig, to_dict
from .data import collate
from .objective import DominoForTraining
from .shards import DistilledAnswers
from .target import TargetHead, check_soft_labels, check_tokens, choose_mask_token, load_target, make_drafter
from .trainer import DominoTrainer, plain_drafter
from .vocabulary import SampledVocabulary, WholeVocabulary


def train(config: TrainConfig, resume: bool = False) -> Path:
    """Run a training and return the folder of the drafter, `<output_dir>/drafter`, in bfloat16.

    Raises:
        `ValueError`: config, target and data do not fit together. `FloatingPointError`: the loss is not a number.
    """
    out = Path(config.output_dir)
    checkpoint = _checkpoint(out, resume)
    if checkpoint is not None:
        check_same(config, out)
    torch.manual_seed(config.trainer.get("seed", 42))
    target, tokenizer = load_target(config.target, config.target_dtype)
    draft = make_drafter(target, config.drafter, choose_mask_token(tokenizer, target, config.drafter.mask_token_id))
    if config.objective.labels != "hard":
        check_soft_labels(target)
    if not config.objective.head:
        draft.config.pure_draft_prefix_len = draft.config.num_drafts  # generation then leaves the head out, too
    train_data, held_out = read_data(config, draft.config.target_layer_ids)
    counts = train_data.token_counts()
    check_tokens(counts, target)
    _announce(config, train_data, held_out, counts, draft)

    head = TargetHead.of(target)
    settings = config.objective
    vocabulary = WholeVocabulary(draft.config.vocab_size)
    if settings.vocabulary is not None:
        vocabulary = SampledVocabulary(counts, draft.config.vocab_size, settings.vocabulary, settings.sampled_tokens)
    model = DominoForTraining(draft.config, head, vocabulary, settings)
    model.load_state_dict(draft.state_dict())
    model.set_attn_implementation("flex_attention" if settings.attention == "flex" else settings.attention)
    trainer = DominoTrainer(
        model=model,
        args=_arguments(config),
        train_dataset=train_data,
        eval_dataset=held_out,
        data_collator=collate,
        target=None if train_data.has_features else target,
    )
    stop = StopOnInterrupt()
    trainer.add_callback(stop)
    _add_acceptance(trainer, config, target, tokenizer)
    if trainer.is_world_process_zero():  # beside the checkpoints, whatever --set changed
        out.mkdir(parents=True, exist_ok=True)
        (out / "train_config.yaml").write_text(yaml.safe_dump(to_dict(config), sort_keys=False))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stop.interrupted:
        print(f"Stopped at step {trainer.state.global_step}; continue with the same command and --resume.", flush=True)
        raise KeyboardInterrupt
    return _save(trainer, out)


def _arguments(config: TrainConfig) -> TrainingArguments:
    """The trainer's settings over ours."""
    ours = {
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,  # what the objective leaves out is frozen
        "use_cpu": not torch.accelerator.is_available(),  # transformers refuses bf16 on a CPU that nobody asked for
    }
    return TrainingArguments(output_dir=config.output_dir, **{**ours, **config.trainer})


def read_data(config: TrainConfig, layer_ids: list[int]) -> tuple[DistilledAnswers, DistilledAnswers]:
    """Training and held-out answers: the last `held_out_shards` shards are held out."""
    folder, held_out = Path(config.data), config.held_out_shards
    shards = sorted(folder.glob("shard-*.parquet"))
    if not 0 < held_out < len(shards):
        raise ValueError(
            f"{folder} holds {len(shards)} shards and held_out_shards is {held_out}: nothing is left to train on. "
            "Distil more answers (`domino distill`), or hold out fewer shards."
        )
    settings = config.objective
    options = {
        "max_length": settings.max_length,
        "min_answer": settings.min_answer,
        "layer_ids": None if settings.features == "online" else layer_ids,
        "required": settings.features == "cached",
        "last_hidden": settings.labels != "hard",
    }
    train_data = DistilledAnswers(shards[:-held_out], **options)
    if not len(train_data):
        raise ValueError(
            f"All {train_data.too_short} answers in {folder} are shorter than objective.min_answer = {settings.min_answer} "
            f"tokens once cut to objective.max_length = {settings.max_length}."
        )
    return train_data, DistilledAnswers(shards[-held_out:], **options)


def _checkpoint(out: Path, resume: bool) -> Path | None:
    """The checkpoint to continue from. Raises `ValueError` if there is a run and `--resume` was not given."""
    checkpoint = last_checkpoint(out) if out.is_dir() else None
    if checkpoint is not None and not resume:
        raise ValueError(f"{out} holds a run ({checkpoint.name}): add --resume to go on, or choose another output_dir.")
    return checkpoint


def check_same(config: TrainConfig, out: Path) -> None:
    """Raise `ValueError` where the run in `out` was another one: its data, drafter, objective or seed differ."""
    before = _identity(yaml.safe_load((out / "train_config.yaml").read_text(encoding="utf-8")))
    now = _identity(to_dict(config))
    changed = [name for name in now if before.get(name) != now[name]]
    if changed:
        raise ValueError(
            f"{out} was trained with other settings of {', '.join(changed)}: put them back, or choose another output_dir."
        )


def _identity(values: dict) -> dict:
    """What makes a run this run, as flat names."""
    flat = {name: values.get(name) for name in ("target", "data", "held_out_shards")}
    flat |= {f"{part}.{key}": value for part in ("drafter", "objective") for key, value in values[part].items()}
    return flat | {"trainer.seed": values["trainer"].get("seed")}


def _announce(config: TrainConfig, train_data, held_out, counts, draft) -> None:
    where = "stored" if train_data.has_features else "computed by the target as training goes"
    size = sum(p.numel() for p in draft.parameters()) / 1e6
    print(
        f"{len(train_data)} sequences to train on ({train_data.too_short} too short), {len(held_out)} held out; "
        f"{counts.total():,} answer tokens, {len(counts):,} distinct; features {where}.\n"
        f"Drafter: {size:.1f} M parameters, {draft.config.num_hidden_layers} layers, block {draft.config.block_size}, "
        f"target layers {draft.config.target_layer_ids}, mask token {draft.config.mask_token_id}.",
        flush=True,
    )


def _add_acceptance(trainer: DominoTrainer, config: TrainConfig, target, tokenizer) -> None:
    settings = config.evaluation
    if settings.prompts is None:
        return
    questions = _questions(settings)
    target.to(trainer.args.device)
    trainer.add_callback(RealAcceptance(trainer, target, tokenizer, questions, settings.every, settings.max_new_tokens))


def _questions(settings: EvaluationSettings) -> list[str]:
    """The first prompts of a task or of a file."""
    source = str(settings.prompts)
    if source.endswith(".jsonl"):
        found = tasks.read(Path(source))[: settings.count]
    else:
        found = tasks.load(source, settings.count)
    return [question.turns[0] for question in found]


def _save(trainer: DominoTrainer, out: Path) -> Path:
    """The drafter in bfloat16 beside the checkpoints, also with FSDP."""
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    if trainer.is_world_process_zero():
        half = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
        plain_drafter(trainer.drafter, half).save_pretrained(out / "drafter")
    trainer.accelerator.wait_for_everyone()
    return out / "drafter"
