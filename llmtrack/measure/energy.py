"""Formulas from energy counters to joules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.measure.gauge import Interval

LEAST_SURE = 0.05
"""Maximum relative error, from the counter's update period, at which energy is reported."""


@dataclass(frozen=True)
class Energy:
    """Energy of timed calls.

    Attributes:
        joules: of the device, over all calls.
        seconds: total duration of the calls.
    """

    joules: float
    seconds: float

    @property
    def watts(self) -> float:
        """Mean power over the calls."""
        return self.joules / self.seconds

    def idle_share(self, idle_watts: float) -> float:
        """Return the share of the energy that an idle device would have used, at most 1."""
        return min(1.0, idle_watts * self.seconds / self.joules)


def energy_of(intervals: Sequence[Interval], period_s: float) -> Energy | None:
    """Return the energy of timed calls, or None if the counter is too coarse.

    A counter updated every T seconds is off by up to T at either end of a call of d seconds. Errors of n calls are
    independent, so the relative error of the sum is about T / (d sqrt(n)); at most 5 % is accepted.

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
