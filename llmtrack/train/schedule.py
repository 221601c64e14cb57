"""The learning rate of each step."""

from __future__ import annotations

import math

FLOOR_SHARE = 0.1
"""Learning rate of the last step, as a share of the peak."""


def learning_rate(step: int, steps: int, peak: float, warmup: int) -> float:
    """Return the learning rate of a step: linear warm-up to the peak, then cosine decay to a tenth of it.

    Source: I. Loshchilov, F. Hutter, SGDR (2017), with linear warm-up as in A. Vaswani et al. (2017).

    Args:
        step: number of the step, from 1.
        steps: number of steps in all.
        peak: the highest learning rate; reached at step `warmup`, or at step 1 without warm-up.
        warmup: steps of the warm-up.
    """
    if step < warmup:
        return peak * step / warmup
    begin = max(warmup, 1)
    if steps <= begin:
        return peak
    share = (step - begin) / (steps - begin)
    return peak * (FLOOR_SHARE + (1 - FLOOR_SHARE) * (1 + math.cos(math.pi * share)) / 2)
