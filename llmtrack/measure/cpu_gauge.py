"""The counters of a CPU, as far as Linux shows them: energy (RAPL), clock, heat, and the quota of its control groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from llmtrack.measure.gauge import GaugeReading
from llmtrack.system import control_groups, read_text

_QUOTA = "the CPU quota of its control group"


class CpuGauge:
    """Reads the counters of all of a machine's CPUs.

    Energy is that of whole packages and their memory, whoever uses them.

    Args:
        root: where `proc` and `sys` are.
    """

    period_s = 0.001

    def __init__(self, root: Path = Path("/")) -> None:
        self._zones = list(_zones(root / "sys/class/powercap"))
        self.name = f"RAPL, {' and '.join(zone.name for zone in self._zones)}" if self._zones else "the CPU"
        cpus = root / "sys/devices/system/cpu"
        self._clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._throttles = sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        self._quotas = [
            path for _, each in control_groups("cpu", root) if (path := each / "cpu.stat").is_file()
        ]

    def read(self) -> GaugeReading:
        """Read the counters; what cannot be read is left out."""
        energies = [zone.joules() for zone in self._zones]
        at = time.perf_counter()
        # The fastest CPU is one that computes: idle ones slow down.
        clocks = [clock for path in self._clocks if (clock := _number(path)) is not None]
        throttled = [count for path in self._throttles if (count := _number(path)) is not None]
        held = [seconds for path in self._quotas if (seconds := _throttled_seconds(path)) is not None]
        known = [joules for joules in energies if joules is not None]
        return GaugeReading(
            at=at,
            energy_j=sum(known) if known and len(known) == len(energies) else None,
            clock_mhz=max(clocks) / 1000 if clocks else None,
            slowed_s={_QUOTA: max(held)} if held else {},
            slowed_times={"heat": sum(throttled)} if throttled else {},
        )


class _Zone:
    """An energy counter, which begins anew at its limit."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self._file = folder / "energy_uj"
        self._limit = _number(folder / "max_energy_range_uj") or 0
        self._last = _number(self._file)
        self._sum = 0

    @property
    def readable(self) -> bool:
        return self._last is not None

    def joules(self) -> float | None:
        """Return the joules since it was first read."""
        now = _number(self._file)
        if now is None or self._last is None:
            return None
        self._sum += now - self._last if now >= self._last else now - self._last + self._limit
        self._last = now
        return self._sum / 1e6


def _zones(folder: Path) -> Iterator[_Zone]:
    """Yield the packages that can be read, and the memory beside each; what is inside a package is in its sum."""
    for path in sorted(folder.glob("intel-rapl:*")):
        name = read_text(path / "name")
        if not name.startswith("package") and name != "dram":
            continue
        zone = _Zone(path, name)
        if zone.readable:
            yield zone


def _throttled_seconds(path: Path) -> float | None:
    """Return how long a control group was held back by its quota: in microseconds (version 2) or nanoseconds (1)."""
    values = dict(line.split(None, 1) for line in read_text(path).splitlines() if " " in line)
    for key, unit in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if values.get(key, "").strip().isdigit():
            return int(values[key]) / unit
    return None


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text.isdigit() else None
