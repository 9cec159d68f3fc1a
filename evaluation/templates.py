"""How a row of each Hub data set becomes user turns: the prompt formats of the DFlash protocol, and what an answer is checked by."""

from __future__ import annotations

import re
from typing import Any

Row = dict[str, Any]
Turns = tuple[list[str], dict[str, Any]]

_PROGRAMMER = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate a "
    "correct Python program that matches the specification and passes all tests. You will NOT return anything except "
    "for the program"
)


def _maths(question: str) -> str:
    return f"{question}\nPlease reason step by step, and put your final answer within \\boxed{{}}."


def gsm8k(row: Row) -> Turns:
    """The number after #### is the answer."""
    return [_maths(row["question"])], {"answer": row["answer"].rsplit("####", 1)[-1].strip().replace(",", "")}


def problem(row: Row) -> Turns:
    """MATH-500 and AIME: a problem and its answer."""
    return [_maths(row["problem"])], {"answer": str(row["answer"])}


def humaneval(row: Row) -> Turns:
    """A stub in a python fence; the tests are kept."""
    text = (
        "Write a solution to the following problem and make sure that it passes the tests:\n"
        f"```python\n{row['prompt']}\n```"
    )
    return [text], {key: row[key] for key in ("prompt", "entry_point", "test")}


def mbpp(row: Row) -> Turns:
    """The problem text alone; the tests are kept."""
    return [row["prompt"]], {key: row[key] for key in ("test_imports", "test_list")}


def livecodebench(row: Row) -> Turns:
    """Four paragraphs; the hidden tests are not used."""
    starter = row["starter_code"]
    how = "Use the following code structure:" if starter else "Write your code in the following format:"
    code = starter or "# YOUR CODE HERE"
    parts = [
        _PROGRAMMER,
        f"### Question:\n{row['question_content']}",
        f"### Format: {how}\n```python\n{code}\n```",
        "### Answer: (use the provided format with backticks)",
    ]
    return ["\n\n".join(parts)], {}


def swe_bench(row: Row) -> Turns:
    """An issue text."""
    return [f"Problem Statement:\n{row['problem_statement']}\nPlease fix the issue described above."], {}


def mt_bench(row: Row) -> Turns:
    """Two turns, the model's own reply between them."""
    return list(row["prompt"]), {}


def alpaca(row: Row) -> Turns:
    """An instruction, and its input where there is one."""
    text = row["instruction"] + (f"\n\nInput:\n{row['input']}" if row["input"] else "")
    return [re.sub(r"\s+$", "", text)], {}
