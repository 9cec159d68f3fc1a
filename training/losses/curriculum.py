"""The base-anchored curriculum: λ moves the weight from the base logits to the corrected ones (paper, section 3)."""


def curriculum(step: int, total: int, start: float, decay_ratio: float) -> float:
    """λ = clamp(start · (1 - step / (total · decay_ratio)), 0, 1). With start 0 there is no curriculum.

    Worked example, 100 steps, start 1, decay_ratio 0.5: λ = 1 at step 0, 0.5 at 25, 0 from 50 on.
    """
    return min(max(start * (1 - step / max(total * decay_ratio, 1)), 0.0), 1.0)
