"""Device metrics beside a measurement: energy, throttling, and the shares of the roofline that are reached."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial

from llmtrack.engine import EngineInfo, GenerateRequest
from llmtrack.host.formatting import MIB
from llmtrack.measure import gauges
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.disturbances import busy_warning, gpu_warning, other_processes, read_cpu, throttle_causes
from llmtrack.measure.formulas import memory_bandwidth_utilization
from llmtrack.measure.gauges import Gauge, GaugeReading, Interval, energy_of
from llmtrack.measure.roofline import (
    Roof,
    Stage,
    decode_stage,
    prefill_stage,
    scoring_work,
    share_of_rate,
    stage,
)
from llmtrack.measure.system_metrics import SystemInterval, SystemReading, system_reader
from llmtrack.spec.scenario import Scalar

IDLE_S = 1.0
Figures = tuple[dict[str, float], dict[str, Scalar]]


@cache
def idle_watts(device: str) -> float | None:
    """Return the power of a device with a loaded model and no computation, or None if unknown.

    Measured once, for a second, before any timing.
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

    Measures the idle power before the device works.
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
    def around(self) -> tuple[SystemInterval, ...]:
        """The state of the machine at both moments, if readable."""
        began, ended = self._around[0], self._around[-1]
        return ((began, ended),) if began is not None and ended is not None else ()

    def _read_system(self) -> SystemReading | None:
        return self._beside.get("the state of the machine", self._system, None)

    def _read(self) -> GaugeReading | None:
        return self._beside.get("the state of the device", self._gauge.read, None) if self._gauge else None


def energy_figures(device: str, intervals: Sequence[Interval], tokens: float, prefix: str = "") -> Figures:
    """Return energy metrics and facts of timed calls; empty if the counters are insufficient.

    Args:
        intervals: readings before and after each call.
    """
    counters = gauges.gauge_of(device)
    energy = energy_of(intervals, counters.period_s) if counters else None
    if counters is None or energy is None or not tokens:
        return {}, {}
    metrics = {f"{prefix}joules_per_token": energy.joules / tokens, f"{prefix}power_w": energy.watts}
    if (idle := idle_watts(device)) is not None:
        metrics |= {f"{prefix}idle_energy_share": energy.idle_share(idle), "idle_power_w": idle}
    return metrics, {"energy_source": counters.name}


def device_warnings(device: str, intervals: Sequence[Interval]) -> tuple[tuple[str, ...], bool]:
    """Return warnings about a device, and whether a cause may be temporary.

    Args:
        intervals: readings before and after each call.
    """
    causes = throttle_causes(intervals, device)
    # Without readings, query the driver's tool once.
    other_programs = gpu_warning(device, other_processes(intervals) if intervals else None)
    unreadable = dict.fromkeys(
        f"energy is unknown: {reading.energy_unknown}"
        for interval in intervals
        for reading in interval
        if reading.energy_unknown
    )
    lines = (*(cause.message for cause in causes), *other_programs, *unreadable)
    return lines, bool(other_programs) or any(cause.temporary for cause in causes)


def roof_of(info: EngineInfo, beside: BestEffort) -> Roof | None:
    """Return the ceilings of an engine's device in its arithmetic, or None without a bandwidth."""
    # Imported late, so that tests can replace them and reading results does not need them.
    from llmtrack.measure import ceilings

    copied = beside.get("the copy bandwidth", lambda: ceilings.copy_bandwidth(info.device), None)
    if copied is None:
        return None
    rate = None
    if info.operations is not None and info.arithmetic:
        rate = beside.get(
            "the rate of matrix products", lambda: ceilings.matrix_rate(info.device, info.arithmetic), None
        )
    # Devices that share each layer work in parallel.
    products = None if rate is None else rate * info.parallel
    return Roof(copied * info.parallel, products, ceilings.doubts(info.device, info.arithmetic))


def generation_roofline(
    info: EngineInfo,
    requests: Sequence[GenerateRequest],
    metrics: Mapping[str, float],
    roof: Roof,
    use_cache: bool = True,
) -> Figures:
    """Return metrics and facts of the prefill and decode steps of a timed scenario.

    Args:
        requests: the calls of a repeat.
        use_cache: without a cache, each step is a full pass, to which the decode bound does not apply.
    """
    figures, facts = _ceilings(roof), _conditions(info, roof)
    prefill_ms, decode_ms = metrics.get("time_to_first_token_ms"), metrics.get("inter_token_latency_ms")
    if prefill_ms:
        _add(figures, facts, "prefill", prefill_stage(info, requests, roof), prefill_ms / 1000, roof)
    if decode_ms and use_cache:
        decoding = decode_stage(info, requests, roof)
        _add(figures, facts, "decode", decoding, decode_ms / 1000, roof)
        if not roof.doubt:
            figures["memory_bandwidth_utilization"] = memory_bandwidth_utilization(
                decoding.work.bytes, decode_ms / 1000, roof.bandwidth
            )
    return figures, facts


def scoring_roofline(info: EngineInfo, read: Iterable[Sequence[int]], seconds: float, roof: Roof) -> Figures:
    """Return metrics and facts of scoring a corpus.

    Args:
        read: tokens read of each row, per batch.
    """
    figures, facts = _ceilings(roof), _conditions(info, roof)
    if seconds > 0:
        _add(figures, facts, "score", stage([scoring_work(info, read)], roof), seconds, roof)
    return figures, facts


def _add(
    figures: dict[str, float], facts: dict[str, Scalar], name: str, done: Stage, seconds: float, roof: Roof
) -> None:
    """Add the work of a stage and its share of the ceilings, unless they are in doubt or exceeded."""
    figures[f"{name}_mib"] = done.work.bytes / MIB
    if done.work.operations is not None:
        figures[f"{name}_gflop"] = done.work.operations / 1e9
    if roof.doubt:
        return
    if done.floor_s > seconds:
        # The ceilings were measured differently from how the model computes, or its weights fit into a cache.
        beaten = f"{name} took {seconds / done.floor_s:.2f} times the least that the measured ceilings allow"
        facts["ceilings_in_doubt"] = "; ".join(
            str(doubt) for doubt in (facts.get("ceilings_in_doubt"), beaten) if doubt
        )
        return
    figures[f"{name}_floor_ms"] = 1000 * done.floor_s
    figures[f"{name}_floor_share"] = done.floor_s / seconds
    share = share_of_rate(done.work, seconds, roof)
    if share is not None:
        figures[f"{name}_flops_utilization"] = share
    if done.bound:
        facts[f"{name}_bound"] = done.bound


def _ceilings(roof: Roof) -> dict[str, float]:
    rate = {} if roof.rate is None else {"matrix_tflop_per_s": roof.rate / 1e12}
    return {"copy_bandwidth_gb_per_s": roof.bandwidth / 1e9, **rate}


def _conditions(info: EngineInfo, roof: Roof) -> dict[str, Scalar]:
    facts: dict[str, Scalar] = {"ceilings_in_doubt": roof.doubt, "arithmetic": info.arithmetic}
    return {name: value for name, value in facts.items() if value}
