"""The Pareto front: the scenarios that no other one beats in everything."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmtrack.metrics import Better


def pareto_front(values: Sequence[Sequence[float]], better: Sequence[Better]) -> list[bool]:
    """Return which points are on the front.

    A point is off it if another is at least as good in every respect and better in one. Equal points are on it
    together; a point with a value missing (NaN) is off it, and beats none.

    Args:
        values: one row per point, one column per respect.
        better: for each respect, whether `higher` or `lower` is better.
    """
    signs = np.array([1.0 if direction == "higher" else -1.0 for direction in better])
    points = np.asarray(values, dtype=np.float64).reshape(-1, len(better)) * signs
    known = ~np.isnan(points).any(axis=1)
    # beats[i, j]: point i beats point j.
    at_least = (points[:, None, :] >= points[None, :, :]).all(axis=2)
    beats = at_least & (points[:, None, :] > points[None, :, :]).any(axis=2)
    beaten = (beats & known[:, None]).any(axis=0)
    return [bool(each) for each in known & ~beaten]
