"""What a device's own counters say before and after a timed call: energy, clocks, heat, and what slowed it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class GaugeReading:
    """What a device's counters said at a moment; what it does not tell is None, or absent.

    Attributes:
        at: seconds of a clock that does not go back.
        energy_j: joules since some moment.
        energy_unknown: why they are not known, where the device has a counter.
        clock_mhz: the clock of what computes.
        temperature_c: degrees Celsius.
        slowed_s: seconds since some moment during which it was held back, by the cause in words.
        slowed_times: times that it was held back since some moment, by the cause in words.
        reasons: why it is held back at this moment, in words.
        others: processes other than this one that use it.
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
"""Readings right before and right after a timed call."""


class Gauge(Protocol):
    """Reads the counters of one device."""

    name: str
    """What it reads, in words: `NVML, NVIDIA H100`, `RAPL, package-0 and dram`."""

    period_s: float
    """Seconds between two updates of its energy counter, at most."""

    def read(self) -> GaugeReading:
        """Read the counters; what cannot be read is left out."""
        ...
