"""What happens between training steps: the real τ, and a clean stop on Ctrl-C."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import torch
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from ..evaluation.acceptance import acceptance
from ..modeling_domino import DominoModel
from .trainer import DominoTrainer


class RealAcceptance(TrainerCallback):
    """Every N steps, generate on held-out prompts with the drafter as it stands and log its τ.

    Teacher-forced acceptance flatters: the GRU reads true tokens there and its own here. The drafter is a copy in the
    target's dtype, as it will be used; with FSDP its weights are gathered first. The first process generates, the others
    wait.
    """

    def __init__(
        self, trainer: DominoTrainer, target, tokenizer, questions: list[str], every: int, max_new_tokens: int
    ):
        self.trainer, self.target, self.tokenizer = trainer, target, tokenizer
        self.questions, self.every, self.max_new_tokens = questions, every, max_new_tokens

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self.every and state.global_step != state.max_steps:
            return
        trainer = self.trainer
        weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        tau = torch.zeros(1, device=args.device)
        if trainer.accelerator.is_main_process:
            draft = DominoModel(trainer.drafter.config).to(args.device, self.target.dtype).eval()
            draft.load_state_dict(weights)
            with torch.autocast(args.device.type, enabled=False):
                statistics = acceptance(self.target, draft, self.tokenizer, self.questions, self.max_new_tokens)
            tau += statistics.acceptance_length
        tau = trainer.accelerator.reduce(tau, "sum").item()
        due = control.should_log  # a log of ours would count as the one that is due at this step
        trainer.log({"tau": round(tau, 4)})
        control.should_log = due


class StopOnInterrupt(TrainerCallback):
    """The first Ctrl-C finishes the step, saves a checkpoint and stops; the second one stops at once."""

    interrupted = False

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = signal.signal(signal.SIGINT, self._interrupt)

    def on_train_end(self, args, state, control, **kwargs):
        signal.signal(signal.SIGINT, self.before)

    def _interrupt(self, signum, frame):
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        print("\nStopping after this step, with a checkpoint; Ctrl-C again stops at once.", flush=True)

    def on_step_end(self, args, state, control, **kwargs):
        if torch.distributed.is_initialized():  # one process may have heard it a step before the others
            heard = torch.tensor(int(self.interrupted), device=args.device)
            torch.distributed.all_reduce(heard, torch.distributed.ReduceOp.MAX)
            self.interrupted = bool(heard)
        if self.interrupted:
            control.should_save = control.should_training_stop = True


def last_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint; in one that a crash cut short the trainer's state, written last, is absent or torn."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _complete(path)]
    return max(found, key=lambda path: int(path.name.rsplit("-", 1)[1]), default=None)


def _complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return False
    return True
