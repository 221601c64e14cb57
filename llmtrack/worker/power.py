"""Energy per token, and what held the device back: metrics, facts and warnings from its counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial

from llmtrack.engine import EngineInfo
from llmtrack.measure import gauges
from llmtrack.measure.beside import Beside
from llmtrack.measure.causes import causes, other_processes
from llmtrack.measure.energy import energy_of
from llmtrack.measure.gauge import Gauge, GaugeReading, Interval
from llmtrack.measure.interference import busy_warning, gpu_warning, read_cpu
from llmtrack.spec.scenario import Scalar

IDLE_S = 1.0


@cache
def idle_watts(device: str) -> float | None:
    """Return the power of a device on which a model is loaded and nothing computes, None where it does not tell.

    Measured once, over a second, before anything is timed.
    """
    counters = gauges.gauge_of(device)
    if counters is None or (before := counters.read()).energy_j is None:
        return None
    time.sleep(IDLE_S)
    after = counters.read()
    if after.energy_j is None or after.energy_j < before.energy_j:
        return None
    return (after.energy_j - before.energy_j) / (after.at - before.at)


def gauge_for(info: EngineInfo, beside: Beside) -> Gauge | None:
    """Return what reads the counters of an engine's device, None where nothing does, or there are several.

    How much power the device takes idle is looked at before it works.
    """
    if info.devices > 1:
        return None
    gauge = beside.get("the state of the device", partial(gauges.gauge_of, info.device), None)
    if gauge is not None:
        beside.get("its power when idle", partial(idle_watts, info.device), None)
    return gauge


class Watch:
    """What else the machine does, and what a device's counters say, from here to the end of what is measured."""

    def __init__(self, device: str, gauge: Gauge | None, beside: Beside) -> None:
        self._device, self._gauge, self._beside = device, gauge, beside
        self._before = beside.get("the load of the machine", read_cpu, None)
        self._began = self._read()

    def end(self) -> tuple[Sequence[Interval], tuple[str, ...]]:
        """Return the device's counters before and after, where they can be read, and what is to be said of it and the machine."""
        ended, beside = self._read(), self._beside
        readings = ((self._began, ended),) if self._began is not None and ended is not None else ()
        busy = beside.get("the load of the machine", lambda: busy_warning(self._before, read_cpu()), ())
        told = partial(device_warnings, self._device, readings)
        return readings, (*busy, *beside.get("what held the device back", told, ((), False))[0])

    def _read(self) -> GaugeReading | None:
        return self._beside.get("the state of the device", self._gauge.read, None) if self._gauge else None


def energy_figures(
    device: str, intervals: Sequence[Interval], tokens: float, prefix: str = ""
) -> tuple[dict[str, float], dict[str, Scalar]]:
    """Return metrics and facts of the energy of timed calls; none where the counters do not tell.

    Args:
        device: as `resolve_device` names it.
        intervals: readings before and after each call.
        tokens: tokens that came of all calls.
        prefix: before the names of the metrics.
    """
    counters = gauges.gauge_of(device)
    found = energy_of(intervals, counters.period_s) if counters else None
    if counters is None or found is None or not tokens:
        return {}, {}
    metrics = {f"{prefix}joules_per_token": found.joules / tokens, f"{prefix}power_w": found.watts}
    if (idle := idle_watts(device)) is not None:
        metrics |= {f"{prefix}idle_energy_share": found.idle_share(idle), "idle_power_w": idle}
    return metrics, {"energy_source": counters.name}


def device_warnings(device: str, intervals: Sequence[Interval]) -> tuple[tuple[str, ...], bool]:
    """Return what is to be said of a device during timed calls, and whether it may be otherwise another time.

    Args:
        device: as `resolve_device` names it.
        intervals: readings before and after each call.
    """
    found = causes(intervals, device)
    # Without readings the driver's tool is asked, once.
    shared = gpu_warning(device, other_processes(intervals) if intervals else None)
    unknown = dict.fromkeys(
        f"no energy is told: {reading.energy_unknown}"
        for interval in intervals
        for reading in interval
        if reading.energy_unknown
    )
    words = (*(each.words for each in found), *shared, *unknown)
    return words, bool(shared) or any(each.passing for each in found)
