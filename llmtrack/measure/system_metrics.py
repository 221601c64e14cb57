"""MLflow's system metrics, from readings of the machine before and after timed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Protocol, runtime_checkable

import psutil

from llmtrack.measure.disturbances import CpuReading, read_cpu
from llmtrack.measure.gauges import Gauge
from llmtrack.metrics import SYSTEM_PREFIX
from llmtrack.spec.outcome import StepValues

MAX_POINTS = 30
"""Maximum points of a series."""

MIN_POINT_S = 1.0
"""Minimum seconds of calls behind a point, if there are as many: CPU counters tick in 10 ms."""

_MEGABYTE = 1e6
"""As in MLflow."""


@dataclass(frozen=True)
class SystemReading:
    """The state of the machine at one moment.

    Attributes:
        at: seconds since the epoch.
        cpu: cumulative CPU time.
        values: by MLflow's name without prefix, such as `system_memory_usage_megabytes`.
    """

    at: float
    cpu: CpuReading
    values: Mapping[str, float] = field(default_factory=dict)


SystemInterval = tuple[SystemReading, SystemReading]
"""Readings right before and after a timed call."""


@runtime_checkable
class UsageGauge(Protocol):
    """A gauge that reads the use of a GPU."""

    def usage(self) -> Mapping[str, float]:
        """Return values by MLflow's name without prefix."""
        ...


def system_reader(gauge: Gauge | None) -> Callable[[], SystemReading]:
    """Return a function that reads the machine, and the GPU of a gauge if it has one."""
    return partial(_read, gauge if isinstance(gauge, UsageGauge) else None)


def system_steps(intervals: Sequence[SystemInterval]) -> tuple[StepValues, ...]:
    """Return system metrics as a series over timed calls: the CPU's use during them, and means of the state after them.

    Consecutive calls share a point if they are short or many.
    """
    seconds = sum(after.at - before.at for before, after in intervals)
    points = min(MAX_POINTS, len(intervals), max(1, int(seconds / MIN_POINT_S)))
    bounds = [number * len(intervals) // points for number in range(points + 1)] if intervals else []
    return tuple(
        StepValues(step, intervals[last - 1][1].at, system_values(intervals[first:last]))
        for step, (first, last) in enumerate(pairwise(bounds))
    )


def system_values(intervals: Sequence[SystemInterval]) -> dict[str, float]:
    """Return system metrics over calls as one point."""
    values: dict[str, float] = {}
    available = sum(after.cpu.available - before.cpu.available for before, after in intervals)
    if available > 0:
        busy = sum(after.cpu.everything - before.cpu.everything for before, after in intervals)
        values["cpu_utilization_percentage"] = min(100.0, max(0.0, 100 * busy / available))
    states = [after.values for _, after in intervals]
    for name in dict.fromkeys(name for state in states for name in state):
        samples = [state[name] for state in states if name in state]
        values[name] = sum(samples) / len(samples)
    return {SYSTEM_PREFIX + name: round(value, 1) for name, value in values.items()}


def _read(gauge: UsageGauge | None) -> SystemReading:
    memory = psutil.virtual_memory()
    usage = {
        "system_memory_usage_megabytes": memory.used / _MEGABYTE,
        "system_memory_usage_percentage": 100 * memory.used / memory.total,
    }
    return SystemReading(time.time(), read_cpu(), {**usage, **(gauge.usage() if gauge else {})})
