"""Energy per token and throttling: metrics, facts and warnings from device counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache, partial

from llmtrack.engine import EngineInfo
from llmtrack.measure import gauges
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.disturbances import busy_warning, gpu_warning, other_processes, read_cpu, throttle_causes
from llmtrack.measure.gauges import Gauge, GaugeReading, Interval, energy_of
from llmtrack.measure.system_metrics import Around, SystemReading, system_reader
from llmtrack.spec.scenario import Scalar

IDLE_S = 1.0


@cache
def idle_watts(device: str) -> float | None:
    """Return the power of a device with a loaded model and no computation, or None if unknown.

    Measured once, over a second, before any timing.
    """
    counters = gauges.gauge_of(device)
    if counters is None or (before := counters.read()).energy_j is None:
        return None
    time.sleep(IDLE_S)
    after = counters.read()
    if after.energy_j is None or after.energy_j < before.energy_j:
        return None
    return (after.energy_j - before.energy_j) / (after.at - before.at)


def gauge_for(info: EngineInfo, beside: BestEffort) -> Gauge | None:
    """Return the gauge of an engine's device, or None if there is none, or several devices.

    The idle power is measured before the device works.
    """
    if info.devices > 1:
        return None
    gauge = beside.get("the state of the device", partial(gauges.gauge_of, info.device), None)
    if gauge is not None:
        beside.get("its power when idle", partial(idle_watts, info.device), None)
    return gauge


class Watch:
    """Watches the machine's load and the device's counters from construction to `end`."""

    def __init__(self, device: str, gauge: Gauge | None, beside: BestEffort) -> None:
        self._device, self._gauge, self._beside = device, gauge, beside
        self._before = beside.get("the load of the machine", read_cpu, None)
        self._system = system_reader(gauge)
        self._around = [self._read_system()]
        self._began = self._read()

    def end(self) -> tuple[Sequence[Interval], tuple[str, ...]]:
        """Return the counters before and after, if readable, and warnings about device and machine."""
        ended, beside = self._read(), self._beside
        self._around.append(self._read_system())
        readings = ((self._began, ended),) if self._began is not None and ended is not None else ()
        busy = beside.get("the load of the machine", lambda: busy_warning(self._before, read_cpu()), ())
        device_findings = partial(device_warnings, self._device, readings)
        return readings, (*busy, *beside.get("what held the device back", device_findings, ((), False))[0])

    @property
    def around(self) -> tuple[Around, ...]:
        """The state of the machine at both moments, if readable."""
        began, ended = self._around[0], self._around[-1]
        return ((began, ended),) if began is not None and ended is not None else ()

    def _read_system(self) -> SystemReading | None:
        return self._beside.get("the state of the machine", self._system, None)

    def _read(self) -> GaugeReading | None:
        return self._beside.get("the state of the device", self._gauge.read, None) if self._gauge else None


def energy_figures(
    device: str, intervals: Sequence[Interval], tokens: float, prefix: str = ""
) -> tuple[dict[str, float], dict[str, Scalar]]:
    """Return energy metrics and facts of timed calls; empty if the counters are insufficient.

    Args:
        intervals: readings before and after each call.
        tokens: tokens produced by all calls.
        prefix: prefix of the metric names.
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
    """Return warnings about a device during timed calls, and whether the cause may be temporary.

    Args:
        intervals: readings before and after each call.
    """
    found = throttle_causes(intervals, device)
    # Without readings, query the driver's tool once.
    shared = gpu_warning(device, other_processes(intervals) if intervals else None)
    unknown = dict.fromkeys(
        f"energy is unknown: {reading.energy_unknown}"
        for interval in intervals
        for reading in interval
        if reading.energy_unknown
    )
    words = (*(each.message for each in found), *shared, *unknown)
    return words, bool(shared) or any(each.temporary for each in found)
