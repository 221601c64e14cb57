"""Device counters read around timed calls: energy, clock, temperature and throttling, of CPUs and NVIDIA cards."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from llmtrack.devices import kind_of, on_gpu
from llmtrack.host.machine import control_groups, read_text
from llmtrack.measure.gpus import card_of, other_pids, torch_uuid

MAX_ENERGY_ERROR = 0.05
"""Maximum relative error, from the counter's update period, at which energy is reported."""

NVML_PERIOD_S = 0.1
"""Update period of NVML's energy counter in seconds, as observed on an H200."""

# Constants of nvml.h: clock event reasons, and perf policy types of violation counters.
NVML_REASONS = {
    0x04: "its power cap",
    0x08: "its hardware's protection",
    0x20: "heat",
    0x40: "heat",
    0x80: "its power supply (brake)",
}
NVML_VIOLATIONS = {0: "its power cap", 1: "heat", 3: "the limit of its board", 5: "its reliability limit"}
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0

_QUOTA = "the CPU quota of its control group"


@dataclass(frozen=True)
class GaugeReading:
    """Device counters at one moment; unknown values are None or absent.

    Attributes:
        at: monotonic clock in seconds.
        energy_j: cumulative joules.
        clock_mhz: clock of the compute units.
        slowed_s: cumulative throttled seconds, by cause.
        slowed_times: cumulative throttle events, by cause.
        reasons: current throttle reasons.
        others: PIDs of other processes using the device.
        energy_unknown: why energy is unknown although the device has a counter.
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


@cache
def gauge_of(device: str) -> Gauge | None:
    """Return the gauge of a device, or None if it has none."""
    if on_gpu(device):
        return open_card(device) if kind_of(device) == "cuda" else None
    return CpuGauge()


@dataclass(frozen=True)
class Energy:
    """Energy of timed calls: the device's joules, and the calls' total seconds."""

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
    if seconds <= 0 or joules <= 0 or period_s * math.sqrt(len(parts)) / seconds > MAX_ENERGY_ERROR:
        return None
    return Energy(joules, seconds)


def open_card(device: str) -> NvmlGauge | None:
    """Return the gauge of a torch device's card, or None without NVML (package nvidia-ml-py) or the card."""
    try:
        import pynvml

        pynvml.nvmlInit()
        torch_id = torch_uuid(device)
        card = card_of(device, torch_id)
        if card is not None:
            uuid = card.uuid
        elif torch_id:
            uuid = torch_id if torch_id.startswith(("GPU-", "MIG-")) else f"GPU-{torch_id}"
        else:
            return None
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        # On a MIG card the counters cover all instances.
        return NvmlGauge(pynvml, handle, whole_card=not (card and card.instances))
    except Exception:  # no package, no driver, no permission
        return None


class NvmlGauge:
    """Reads the counters of one NVIDIA card.

    Args:
        nvml: the module `pynvml` or a substitute.
        handle: NVML handle of the card.
        whole_card: whether this process computes on the whole card; on a MIG instance, energy is unknown.
    """

    period_s = NVML_PERIOD_S

    def __init__(self, nvml: Any, handle: Any, whole_card: bool = True) -> None:
        self._nvml, self._handle, self._whole_card = nvml, handle, whole_card
        name = self._get("nvmlDeviceGetName")
        self.name = f"NVML, {name.decode() if isinstance(name, bytes) else name or 'a GPU'}"

    def read(self) -> GaugeReading:
        """Read the counters; unsupported ones are left out."""
        energy = self._get("nvmlDeviceGetTotalEnergyConsumption") if self._whole_card else None
        at = time.perf_counter()
        clock = self._get("nvmlDeviceGetClockInfo", _CLOCK_SM)
        temperature = self._get("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
        bits = self._get("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # older name
            bits = self._get("nvmlDeviceGetCurrentClocksThrottleReasons")
        slowed: dict[str, float] = {}
        for kind, cause in NVML_VIOLATIONS.items():
            if (status := self._get("nvmlDeviceGetViolationStatus", kind)) is not None:
                slowed[cause] = status.violationTime / 1e9
        processes = self._get("nvmlDeviceGetComputeRunningProcesses") or ()
        return GaugeReading(
            at=at,
            energy_j=None if energy is None else energy / 1000,
            clock_mhz=clock,
            temperature_c=temperature,
            slowed_s=slowed,
            reasons=frozenset(cause for bit, cause in NVML_REASONS.items() if (bits or 0) & bit),
            others=other_pids(int(process.pid) for process in processes),
        )

    def usage(self) -> dict[str, float]:
        """Return the card's memory, utilization and power by MLflow's names; unsupported ones are left out."""
        memory, busy = self._get("nvmlDeviceGetMemoryInfo"), self._get("nvmlDeviceGetUtilizationRates")
        power, limit = self._get("nvmlDeviceGetPowerUsage"), self._get("nvmlDeviceGetEnforcedPowerLimit")
        values: dict[str, float] = {}
        if memory is not None:
            values |= {"memory_usage_percentage": 100 * memory.used / memory.total}
            values |= {"memory_usage_megabytes": memory.used / 1e6}
        if busy is not None:
            values["utilization_percentage"] = busy.gpu
        if power is not None:
            values["power_usage_watts"] = power / 1000
        if power is not None and limit:
            values["power_usage_percentage"] = 100 * power / limit
        index = self._get("nvmlDeviceGetIndex") or 0
        return {f"gpu_{index}_{name}": value for name, value in values.items()}

    def _get(self, name: str, *arguments: int) -> Any:
        """Call an NVML function; return None if the library or the card does not support it."""
        query: Callable[..., Any] | None = getattr(self._nvml, name, None)
        try:
            return query(self._handle, *arguments) if query else None
        except Exception:  # NVMLError_NotSupported and its kin
            return None


class CpuGauge:
    """Reads the counters of all CPUs of a Linux machine: energy (RAPL), clock, temperature and control-group quota.

    Energy covers whole packages and their memory, including other programs.

    Args:
        root: parent of `proc` and `sys`.
    """

    period_s = 0.001

    def __init__(self, root: Path = Path("/")) -> None:
        self._zones = list(_zones(root / "sys/class/powercap"))
        sources = " and ".join(zone.name for zone in self._zones if zone.duplicate_of is None)
        self.name = f"RAPL, {sources}" if sources else "the CPU"
        cpus = root / "sys/devices/system/cpu"
        self._clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._throttles = sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        self._quotas = [path for _, group in control_groups("cpu", root) if (path := group / "cpu.stat").is_file()]

    def read(self) -> GaugeReading:
        """Read the counters; unreadable ones are left out."""
        energy, unknown = self._energy()
        at = time.perf_counter()
        # Idle CPUs clock down; the fastest is one that computes.
        clocks = [clock for path in self._clocks if (clock := _number(path)) is not None]
        throttle_counts = [count for path in self._throttles if (count := _number(path)) is not None]
        quota_seconds = [seconds for path in self._quotas if (seconds := _throttled_seconds(path)) is not None]
        return GaugeReading(
            at=at,
            energy_j=energy,
            energy_unknown=unknown,
            clock_mhz=max(clocks) / 1000 if clocks else None,
            slowed_s={_QUOTA: max(quota_seconds)} if quota_seconds else {},
            slowed_times={"heat": sum(throttle_counts)} if throttle_counts else {},
        )

    def _energy(self) -> tuple[float | None, str]:
        """Return the joules of all counters since the first reading, or why they are unknown."""
        for zone in self._zones:
            if reason := zone.advance():
                return None, reason
            if (first := zone.duplicate_of) is not None:
                zone.duplicate_of = first if _read_between(first, zone) else None
        joules = [zone.joules for zone in self._zones if zone.duplicate_of is None]
        return (sum(joules), "") if joules else (None, "")


class _Zone:
    """A RAPL energy counter, which wraps at its limit.

    Attributes:
        kind: `package` or `dram`.
        last: last reading in microjoules.
        duplicate_of: an earlier zone that shows the same counter, as the dies of a package may.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.kind = name, name.partition("-")[0]
        self.file = folder / "energy_uj"
        self.duplicate_of: _Zone | None = None
        self._limit = _number(folder / "max_energy_range_uj")
        self.last = _number(self.file)
        self._sum = 0

    @property
    def joules(self) -> float:
        """Joules since the first reading."""
        return self._sum / 1e6

    def advance(self) -> str:
        """Read the counter; return why the energy since the last reading is unknown, or an empty text."""
        now, before = _number(self.file), self.last
        if now is None or before is None:
            return f"{self.file} cannot be read any more"
        self.last = now
        if now < before and (self._limit is None or self._limit < before):
            return f"the counter of {self.name} began anew, and where it does ({self.file.parent}/max_energy_range_uj) is not known"
        self._sum += now - before + (self._limit or 0 if now < before else 0)
        return ""


def _zones(folder: Path) -> Iterator[_Zone]:
    """Yield the readable packages and their memory; the other sub-zones are part of the package sum."""
    zones: list[_Zone] = []
    for path in sorted(folder.glob("intel-rapl:*")):
        name = read_text(path / "name")
        if not name.startswith("package") and name != "dram":
            continue
        zone = _Zone(path, name)
        if zone.last is None:
            continue
        candidates = (other for other in zones if other.kind == zone.kind and other.duplicate_of is None)
        zone.duplicate_of = next((other for other in candidates if _same_counter(other, zone)), None)
        zones.append(zone)
        yield zone


def _same_counter(first: _Zone, second: _Zone) -> bool:
    """Return whether two zones show the same counter: two different ones never agree to the microjoule."""
    first.advance()
    second.advance()
    return _read_between(first, second)


def _read_between(first: _Zone, second: _Zone) -> bool:
    """Return whether the last reading of `second` lies between two of `first`: the same counter."""
    before, now, after = first.last, second.last, _number(first.file)
    if before is None or now is None or after is None:
        return False
    # A wrap between the readings is not evidence against it.
    return before <= now <= after or after < before


def _throttled_seconds(path: Path) -> float | None:
    """Return how long a control group was throttled: version 2 reports microseconds, version 1 nanoseconds."""
    values = dict(line.split(None, 1) for line in read_text(path).splitlines() if " " in line)
    for key, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if values.get(key, "").strip().isdigit():
            return int(values[key]) / unit
    return None


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdigit() else None
