"""Published figures, to stand beside ours: speedup / τ, 16 drafts, A100, transformers backend (arXiv 2605.29707, main table)."""

from __future__ import annotations

TASKS = ("gsm8k", "math500", "aime25", "humaneval", "mbpp", "livecodebench", "mt_bench", "alpaca")
CONVENTION = (
    "Paper: Qwen3, thinking off, at most 2,048 new tokens, A100; 16 drafts a round for Domino, 15 for DFlash; τ per sample; first turn "
    "only; speedup of decoding, prefill left out, over the same loop with block size 1, which is slower than plain `generate`. "
    "Independently re-measured over a lean loop, 8B Domino at T = 0 averages 5.50× / 7.33 (arXiv 2607.08642). Ours: as said above, "
    "another model and machine. The two tables are not comparable cell by cell."
)
# (model, method, temperature): speedup, τ by task, in the order of TASKS
ROWS = {
    ("Qwen3-4B", "DFlash", 0): "5.18/6.51 6.10/7.79 5.87/7.47 5.23/6.63 4.77/6.12 5.48/7.15 2.72/4.12 2.21/3.12",
    ("Qwen3-4B", "Domino", 0): "8.02/10.12 7.14/9.01 5.97/7.49 5.66/7.02 5.59/7.11 5.33/6.86 3.28/5.12 2.80/3.88",
    ("Qwen3-8B", "DFlash", 0): "5.21/6.59 6.18/7.87 5.67/7.13 5.21/6.52 4.71/5.98 5.37/7.12 2.73/4.18 2.23/3.10",
    ("Qwen3-8B", "Domino", 0): "7.92/10.03 7.38/9.43 5.85/7.41 5.89/7.39 5.53/7.04 5.27/7.04 3.29/5.18 2.78/3.87",
    ("Qwen3-4B", "DFlash", 1): "4.66/5.98 5.02/6.58 3.79/5.05 4.73/5.96 4.44/5.67 4.76/6.38 2.62/3.97 2.18/3.03",
    ("Qwen3-4B", "Domino", 1): "6.79/8.61 5.67/7.35 3.75/4.83 5.02/6.30 4.96/6.36 5.04/6.45 3.02/4.56 2.59/3.52",
    ("Qwen3-8B", "DFlash", 1): "4.71/6.00 5.00/6.50 3.72/4.77 4.34/5.44 4.14/5.23 5.04/6.73 2.55/3.87 2.16/2.93",
    ("Qwen3-8B", "Domino", 1): "6.47/8.34 5.40/7.20 3.78/4.92 4.75/5.98 4.73/6.02 5.06/6.72 2.94/4.61 2.52/3.46",
}


def markdown() -> str:
    """The table, speedup / τ."""
    lines = ["| model | method | T | " + " | ".join(TASKS) + " |", "|---|---|--:|" + "--:|" * len(TASKS)]
    for (model, method, temperature), figures in ROWS.items():
        cells = [figure.replace("/", "× / ") for figure in figures.split()]
        lines.append(f"| {model} | {method} | {temperature} | {' | '.join(cells)} |")
    return "\n".join(lines)
