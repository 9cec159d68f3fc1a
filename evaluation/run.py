"""`domino eval`: models x temperatures x tasks x methods, question by question; a run can be continued at any point."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from tqdm.auto import tqdm

from . import tasks
from .accuracy import CODE_TASKS, refuse_unscorable, score
from .answering import answer, decoding, encode, run
from .methods import METHODS, Method, Models
from .results import Results
from .settings import EvalSettings, ModelSettings
from .tasks import Question

WARNING = (
    "domino: --execute-code runs programs that a language model wrote. They run in a subprocess without network, with limits of "
    "time and memory, and cannot write outside a folder of their own; a machine that matters is still the wrong place."
)


def load_models(model: ModelSettings, dtype: str) -> Models:
    """The target, its tokenizer and what drafts for it, on the GPU if there is one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from ..embedded.smollm2 import locate
    from ..modeling_domino import DominoModel

    target, drafter = locate(model.target, model.drafter)
    device, kind = "cuda" if torch.cuda.is_available() else "cpu", getattr(torch, dtype)

    def ordinary(name: str):
        return AutoModelForCausalLM.from_pretrained(name, dtype=kind).to(device).eval()

    return Models(
        ordinary(target),
        AutoTokenizer.from_pretrained(target),
        DominoModel.from_pretrained(drafter, dtype=kind).to(device).eval() if drafter else None,
        ordinary(model.assistant) if model.assistant else None,
    )


def evaluate(settings: EvalSettings) -> Results:
    """Measure what is not measured yet.

    Raises:
        `ValueError`: unknown tasks or methods, missing data, answers that cannot be scored here, or a folder of other
            settings; all before any work.
    """
    questions = tasks.parse(settings.asked(), Path(settings.data) if settings.data else None, settings.shuffle)
    if settings.execute_code and set(questions) & set(CODE_TASKS):
        print(WARNING, file=sys.stderr)
    for task, asked in questions.items():
        refuse_unscorable(task, {question.id: question.checks for question in asked}, settings.execute_code)
    methods = {name: METHODS[name] for name in settings.methods}
    results = Results(Path(settings.out), settings.methods, settings.fixed(), settings.identities())
    for model in settings.models:
        work = to_do(results, model.name, questions, settings.temperatures)
        if work:
            measure(load_models(model, settings.dtype), methods, work, model.name, results, settings)
    results.to_parquet()
    return results


def to_do(
    results: Results, model: str, questions: dict[str, list[Question]], temperatures: list[float]
) -> list[tuple[float, str, Question]]:
    """Temperature, task and question of what is not measured yet."""
    everything = [(t, task, q) for t in temperatures for task, asked in questions.items() for q in asked]
    return [(t, task, q) for t, task, q in everything if (model, task, t, q.id) not in results.done]


def measure(
    models: Models,
    methods: dict[str, Method],
    work: list[tuple[float, str, Question]],
    name: str,
    results: Results,
    settings: EvalSettings,
) -> None:
    """Answer the questions with all methods and write them down, after a throw-away question."""
    warm_up(models, methods, work[0][2])
    with tqdm(work, desc=name, unit="question") as bar:
        for temperature, task, question in bar:
            bar.set_postfix_str(f"{task}, T={temperature:g}")
            found = answer(
                models, methods, question, temperature, settings.max_new_tokens, settings.repeats, settings.seed
            )
            scores = {
                method: score(task, question.checks, turns[0].text, settings.execute_code)
                for method, turns in found.items()
            }
            results.add((name, task, temperature, question.id), found, scores)


def warm_up(models: Models, methods: dict[str, Method], question: Question) -> None:
    """One short answer by each method that no figure sees."""
    inputs = encode(models.tokenizer, question.turns[0], models.target.device)
    for method in methods.values():
        run(models, method, inputs, 0, **decoding(0, 16))
