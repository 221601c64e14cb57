"""Interface to device counters read around timed calls: energy, clock, temperature, throttling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class GaugeReading:
    """Device counters at one moment; unknown values are None or absent.

    Attributes:
        at: monotonic clock in seconds.
        energy_j: cumulative joules.
        energy_unknown: why energy is unknown although the device has a counter.
        clock_mhz: clock of the compute units.
        slowed_s: cumulative throttled seconds, by cause.
        slowed_times: cumulative throttle events, by cause.
        reasons: current throttle reasons.
        others: other processes using the device.
    """

    at: float
    energy_j: float | None = None
    clock_mhz: float | None = None
    temperature_c: float | None = None
    slowed_s: Mapping[str, float] = field(default_factory=dict)
    slowed_times: Mapping[str, int] = field(default_factory=dict)
    reasons: frozenset[str] = frozenset()
    others: frozenset[int] = frozenset()
    energy_unknown: str = ""


Interval = tuple[GaugeReading, GaugeReading]
"""Readings right before and after a timed call."""


class Gauge(Protocol):
    """Reads the counters of one device."""

    name: str
    """Source, such as `NVML, NVIDIA H100` or `RAPL, package-0 and dram`."""

    period_s: float
    """Maximum seconds between two updates of the energy counter."""

    def read(self) -> GaugeReading:
        """Read the counters; unreadable ones are left out."""
        ...
