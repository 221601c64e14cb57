"""From energy counters to joules per token: formulas only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.measure.gauge import Interval

LEAST_SURE = 0.05
"""Relative error by the counter's period up to which energy is told."""


@dataclass(frozen=True)
class Energy:
    """What timed calls took.

    Attributes:
        joules: of the device, over all calls.
        seconds: time of the calls.
    """

    joules: float
    seconds: float

    @property
    def watts(self) -> float:
        """Mean power over the calls."""
        return self.joules / self.seconds

    def idle_share(self, idle_watts: float) -> float:
        """Return the share of the energy that the device would have taken idle, at most 1."""
        return min(1.0, idle_watts * self.seconds / self.joules)


def energy_of(intervals: Sequence[Interval], period_s: float) -> Energy | None:
    """Return the energy of timed calls, None where the counters do not tell it surely enough.

    A counter that moves every T seconds is off by up to T at either end of a call of d seconds. The errors of n calls are
    independent, so that the sum is off by about T / (d sqrt(n)) of itself: it is told where that is at most 5 %.

    Args:
        intervals: readings before and after each call.
        period_s: seconds between two updates of the counter.
    """
    parts = [
        (before.energy_j, after.energy_j, after.at - before.at)
        for before, after in intervals
        if before.energy_j is not None and after.energy_j is not None
    ]
    if not parts or len(parts) != len(intervals):
        return None
    seconds = math.fsum(time for _, _, time in parts)
    joules = math.fsum(after - before for before, after, _ in parts)
    if seconds <= 0 or joules <= 0 or period_s * math.sqrt(len(parts)) / seconds > LEAST_SURE:
        return None
    return Energy(joules, seconds)
