"""Train a drafter on distilled answers with transformers' Trainer.

python -m domino.training.train training/configs/smollm2-135m.yaml --target <target> --data <shards> --out <folder>
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import torch
import yaml
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from ..configuration_domino import DominoConfig
from ..modeling_domino import DominoModel
from .data import DistilledAnswers, collate
from .objective import accepted_run, build_blocks, curriculum, domino_loss, head_inputs
from .vocabulary import SampledVocabulary
from .warm_start import warm_start


class DominoTrainer(Trainer):
    """Trainer with Domino's objective; `settings` is the `objective` section of the config."""

    def __init__(self, *args, embedding, head, vocabulary: SampledVocabulary, settings: dict, **kwargs):
        super().__init__(*args, **kwargs)
        self.embedding, self.head, self.vocabulary, self.settings = embedding, head, vocabulary, settings
        self.sums: dict[str, float] = {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        settings = self.settings
        lam = curriculum(
            self.state.global_step, self.state.max_steps, settings["lambda_base"], settings["lambda_decay_ratio"]
        )
        blocks = build_blocks(
            inputs["input_ids"], inputs["lengths"], inputs["anchors"], model.config, settings["gamma"]
        )
        with self.accelerator.autocast():  # accelerate wraps the model's forward alone; the objective is outside it
            loss, parts, rows = self._objective(model, blocks, inputs["features"], lam)
        self._count(blocks.weights, rows, parts, lam)
        return (loss, {"loss": loss.detach()}) if return_outputs else loss

    def _objective(self, model, blocks, features, lam):
        hidden, code = head_inputs(model, blocks, features, self.embedding)
        ids, log_weights, exact, labels = self.vocabulary.draw(blocks.labels)
        rows = blocks.weights > 0
        w2 = model.embed_proj[2].weight[ids]
        loss, parts = domino_loss(
            hidden[rows], code[rows], labels[rows], blocks.weights[rows], self.head[ids], w2, log_weights, exact, lam
        )
        return loss, parts, rows

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        with torch.no_grad():
            return self.compute_loss(model, self._prepare_inputs(inputs)).detach(), None, None

    def _count(self, weights, rows, parts, lam) -> None:
        blocks = int((weights[..., 0] > 0).sum())
        counts = {"blocks": blocks, "lambda": lam * blocks}
        for name in ("final", "base"):
            hit = torch.zeros_like(rows)
            hit[rows] = parts[f"{name}_hit"]
            counts[f"{name}_loss"] = parts[name].item() * blocks
            counts[f"{name}_accept"] = int((accepted_run(hit, weights) * (weights[..., 0] > 0)).sum())
        for name, value in counts.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def log(self, logs, *args, **kwargs):
        blocks = self.sums.pop("blocks", 0)
        super().log({**logs, **{k: v / blocks for k, v in self.sums.items()}}, *args, **kwargs)
        self.sums = {}


def make_drafter(target_config, settings: dict) -> DominoModel:
    """A new drafter shaped after its target; W2 starts at zero, so the untrained head changes nothing."""
    text = target_config.get_text_config()
    same = "vocab_size hidden_size rms_norm_eps rope_parameters max_position_embeddings bos_token_id eos_token_id pad_token_id"
    shape = {name: getattr(text, name) for name in same.split()}
    draft = DominoModel(DominoConfig(**shape, num_target_layers=text.num_hidden_layers, **settings))
    torch.nn.init.zeros_(draft.embed_proj[2].weight)
    return draft


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a drafter on distilled answers.")
    parser.add_argument("config", type=Path, help="training config (YAML)")
    parser.add_argument("--target", required=True, help="folder or Hub id of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder with the shards of distil.py")
    parser.add_argument("--out", type=Path, required=True, help="folder for checkpoints and the drafter")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in --out")
    args = parser.parse_args()

    config = yaml.safe_load(args.config.read_text())
    settings = config["objective"]
    shards = sorted(args.data.glob("shard_*.safetensors"))
    held_out = shards[-settings["held_out_shards"] :]
    limits = {"max_length": settings["max_length"], "min_answer": settings["min_answer"]}
    train, test = DistilledAnswers(shards[: -len(held_out)], **limits), DistilledAnswers(held_out, **limits)
    counts = train.token_counts()
    print(
        f"{len(train)} training sequences, {counts.total()} answer tokens, {len(counts)} distinct; {len(test)} held out"
    )

    torch.manual_seed(config["trainer"]["seed"])
    target = AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.bfloat16)
    draft = make_drafter(target.config, {**config["drafter"], "target_layer_ids": config["distil"]["target_layer_ids"]})
    if settings["warm_start"]:
        warm_start(draft, target)
    trainer = DominoTrainer(
        model=draft,
        args=TrainingArguments(output_dir=str(args.out), remove_unused_columns=False, **config["trainer"]),
        train_dataset=train,
        eval_dataset=test,
        data_collator=functools.partial(collate, num_anchors=settings["num_anchors"]),
        embedding=target.get_input_embeddings().weight.detach(),
        head=target.get_output_embeddings().weight.detach(),
        vocabulary=SampledVocabulary(
            counts, draft.config.vocab_size, settings["frequent_tokens"], settings["sampled_tokens"]
        ),
        settings=settings,
    )
    trainer.train(resume_from_checkpoint=args.resume or None)
    draft.to(torch.bfloat16).save_pretrained(args.out / "drafter")


if __name__ == "__main__":
    main()
