"""Select the gauge of a device."""

from __future__ import annotations

from functools import cache

from llmtrack.devices import kind_of, on_gpu
from llmtrack.measure.cpu_gauge import CpuGauge
from llmtrack.measure.gauge import Gauge
from llmtrack.measure.nvml import open_card


@cache
def gauge_of(device: str) -> Gauge | None:
    """Return the gauge of a device, or None if it has none."""
    if on_gpu(device):
        return open_card(device) if kind_of(device) == "cuda" else None
    return CpuGauge()
