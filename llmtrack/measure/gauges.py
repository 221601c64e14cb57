"""Which gauge reads the counters of a device."""

from __future__ import annotations

from functools import cache

from llmtrack.measure.cpu_gauge import CpuGauge
from llmtrack.measure.gauge import Gauge
from llmtrack.measure.nvml import open_card


@cache
def gauge_of(device: str) -> Gauge | None:
    """Return what reads the counters of a device, None where nothing does.

    Args:
        device: `cpu` or `cuda:N`.
    """
    return open_card(device) if device.startswith("cuda") else CpuGauge()
