"""transformers' Trainer with Domino's objective: batches to blocks, λ, live features, metrics as counts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import DistributedType, PartialState
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer

from ..modeling_domino import DominoModel
from .blocks import draw_anchors
from .features import capture
from .losses.curriculum import curriculum
from .objective import COUNTS, DominoForTraining, rates


class Even(Dataset):
    """A data set with a whole number of batches for all processes: what accelerate would fill up with repetitions, which then
    count twice, are sequences without an answer here."""

    def __init__(self, dataset, batch: int):
        self.dataset, self.length = dataset, math.ceil(len(dataset) / batch) * batch

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict:
        if index < len(self.dataset):
            return self.dataset[index]
        item = self.dataset[0]
        return {**item, "prompt_length": len(item["input_ids"])}


class DominoTrainer(Trainer):
    """Trains a `DominoForTraining`.

    Anchors and sampled vocabularies are drawn from the seed, the step and the sequence, so that a run gives the same losses
    on one process or many, and after a resume.

    Args:
        target: the frozen target, for features that are not in the data; None when they are.
    """

    def __init__(self, *args, target=None, **kwargs):
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise ValueError(
                f"{self.args.n_gpu} GPUs in one process are not supported: start it with `accelerate launch -m domino train …`, "
                "or choose one with CUDA_VISIBLE_DEVICES."
            )
        self.drafter: DominoForTraining = self.model  # as it was before anything wraps it
        self.drafter.target_head.to(self.args.device)
        self.target = target.to(self.args.device) if target is not None else None
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.counts = {True: torch.zeros(len(COUNTS)), False: torch.zeros(len(COUNTS))}  # by model.training

    def create_accelerator_and_postprocess(self):
        """accelerate shards models of accelerators only, and on CPUs falls back to plain replication without a word."""
        state = PartialState()
        if self.args.fsdp and state.distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU  # it becomes FSDP from there
        super().create_accelerator_and_postprocess()
        policy = getattr(getattr(self.accelerator.state, "fsdp_plugin", None), "mixed_precision_policy", None)
        if hasattr(policy, "output_dtype"):  # the loss is added up over batches and processes
            self.accelerator.state.fsdp_plugin.mixed_precision_policy = replace(policy, output_dtype=torch.float32)

    def get_batch_samples(self, epoch_iterator, num_batches, device):
        """The micro-batches of a step with their anchors, and Σ of the decay weights over all of them and all processes."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        for batch in samples:
            batch["anchors"] = self._anchors(batch, self.args.seed + self.state.global_step)
        total = sum(self.drafter.decay_weight(batch["lengths"], batch["anchors"]) for batch in samples)
        return samples, self.accelerator.reduce(torch.as_tensor(total, device=device), "sum") if samples else None

    def _anchors(self, batch: dict[str, Tensor], seed: int) -> Tensor:
        place = batch["lengths"].device
        lengths, prompts, index = (batch[name].cpu() for name in ("lengths", "prompt_lengths", "index"))
        return draw_anchors(lengths, prompts, index, self.drafter.objective.num_anchors, seed).to(place)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(
            input_ids=inputs["input_ids"],
            lengths=inputs["lengths"],
            anchors=inputs["anchors"],
            **self._read_target(inputs),
            lam=self._lambda(),
            seed=self.args.seed + self.state.global_step,
            total_weight=None if num_items_in_batch is None else float(num_items_in_batch),
        )
        loss = outputs["loss"]
        if not torch.isfinite(loss):
            raise FloatingPointError(self._explain_nan(inputs, loss))
        self.counts[model.training] += self.drafter.counts.detach().cpu()
        if num_items_in_batch is not None:  # processes share a step's weight, and gradients are averaged over them
            loss = loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def _lambda(self) -> float:
        settings = self.drafter.objective
        return curriculum(
            self.state.global_step, self.state.max_steps, settings.lambda_base, settings.lambda_decay_ratio
        )

    def _read_target(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Features, and last hidden states where labels are soft: out of the batch, or by a forward of the target."""
        soft = self.drafter.objective.labels != "hard"
        if self.target is None:
            return {name: inputs[name] for name in ("features", "last_hidden") if name in inputs}
        ids, lengths = inputs["input_ids"], inputs["lengths"]
        mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        ids_and_mask = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
        layers, exact = self.drafter.config.target_layer_ids, torch.autocast(ids.device.type, enabled=False)
        with torch.no_grad(), exact, capture(self.target, layers, last=soft) as kept:  # in the dtype it will serve in
            self.target.get_decoder()(**ids_and_mask)
        return {"features": kept.features()} | ({"last_hidden": kept.last_hidden()} if soft else {})

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        inputs["anchors"] = self._anchors(inputs, self.args.seed)  # the same in every evaluation
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs).detach(), None, None

    def get_eval_dataloader(self, eval_dataset=None):
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return super().get_eval_dataloader(Even(dataset, self.args.eval_batch_size * self.accelerator.num_processes))

    def _explain_nan(self, inputs: dict[str, Tensor], loss: Tensor) -> str:
        step, rank = self.state.global_step, self.accelerator.process_index
        path = Path(self.args.output_dir) / f"nan-batch-step{step}-rank{rank}.safetensors"
        save_file({name: value.contiguous().cpu() for name, value in inputs.items()}, path)
        return (
            f"The loss is {loss.item()} at step {step}. The batch is saved in {path}; the last checkpoint is kept. "
            "Look for infinite features in the batch, or lower the learning rate and resume."
        )

    def log(self, logs, *args, **kwargs):
        """Adds the figures of all processes since the last log; all processes call this together."""
        evaluation = "eval_loss" in logs
        if not evaluation and "loss" not in logs:
            return super().log(logs, *args, **kwargs)
        counts = self.accelerator.reduce(self.counts[not evaluation].to(self.args.device), "sum").cpu()
        if counts[0] > 0:
            prefix = "eval_" if evaluation else ""
            # in place: `evaluate` returns these very logs, and `metric_for_best_model` looks there
            logs.update({prefix + name: round(value, 5) for name, value in rates(counts).items()})
            logs.update({} if evaluation else {"lambda": self._lambda()})
            self.counts[not evaluation].zero_()
        return super().log(logs, *args, **kwargs)

    def _save(self, output_dir=None, state_dict=None):
        """A checkpoint is a plain drafter, with its code; the class that trains it does not show."""
        if not self.args.should_save:
            return
        trained, plain = self.model, plain_drafter(self.drafter, state_dict or self.drafter.state_dict())
        self.model = plain
        try:
            super()._save(output_dir)
        finally:
            self.model = trained


def plain_drafter(drafter: DominoForTraining, state_dict: dict[str, Tensor]) -> DominoModel:
    """The drafter as users load it, sharing `state_dict`'s tensors."""
    with torch.device("meta"):
        plain = DominoModel(drafter.config)
    plain.load_state_dict(state_dict, assign=True)
    return plain
