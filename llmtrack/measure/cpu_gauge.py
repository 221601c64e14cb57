"""CPU counters on Linux: energy (RAPL), clock, temperature, and control-group quota."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from llmtrack.host.machine import control_groups, read_text
from llmtrack.measure.gauge import GaugeReading

_QUOTA = "the CPU quota of its control group"


class CpuGauge:
    """Reads the counters of all CPUs of the machine.

    Energy covers whole packages and their memory, including other programs.

    Args:
        root: parent of `proc` and `sys`.
    """

    period_s = 0.001

    def __init__(self, root: Path = Path("/")) -> None:
        self._zones = list(_zones(root / "sys/class/powercap"))
        named = " and ".join(zone.name for zone in self._zones if zone.shown_by is None)
        self.name = f"RAPL, {named}" if named else "the CPU"
        cpus = root / "sys/devices/system/cpu"
        self._clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self._throttles = sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        self._quotas = [path for _, each in control_groups("cpu", root) if (path := each / "cpu.stat").is_file()]

    def read(self) -> GaugeReading:
        """Read the counters; unreadable ones are left out."""
        energy, unknown = self._energy()
        at = time.perf_counter()
        # Idle CPUs clock down; the fastest is one that computes.
        clocks = [clock for path in self._clocks if (clock := _number(path)) is not None]
        throttled = [count for path in self._throttles if (count := _number(path)) is not None]
        held = [seconds for path in self._quotas if (seconds := _throttled_seconds(path)) is not None]
        return GaugeReading(
            at=at,
            energy_j=energy,
            energy_unknown=unknown,
            clock_mhz=max(clocks) / 1000 if clocks else None,
            slowed_s={_QUOTA: max(held)} if held else {},
            slowed_times={"heat": sum(throttled)} if throttled else {},
        )

    def _energy(self) -> tuple[float | None, str]:
        """Return the joules of all counters since the first reading, or why they are unknown."""
        for zone in self._zones:
            if why := zone.advance():
                return None, why
            if (first := zone.shown_by) is not None:
                zone.shown_by = first if _between(first, zone) else None
        joules = [zone.joules for zone in self._zones if zone.shown_by is None]
        return (sum(joules), "") if joules else (None, "")


class _Zone:
    """A RAPL energy counter, which wraps at its limit.

    Attributes:
        kind: a package, or memory.
        last: last reading in microjoules.
        shown_by: an earlier zone that shows the same counter, as the dies of a package may.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.kind = name, name.partition("-")[0]
        self.file = folder / "energy_uj"
        self.shown_by: _Zone | None = None
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


def _between(first: _Zone, second: _Zone) -> bool:
    """Return whether two zones show the same counter: a reading of `second` between two of `first`."""
    before, now, after = first.last, second.last, _number(first.file)
    if before is None or now is None or after is None:
        return False
    # A wrap between the readings is not evidence against it.
    return before <= now <= after or after < before


def _zones(folder: Path) -> Iterator[_Zone]:
    """Yield the readable packages and their memory; the other sub-zones are part of the package sum."""
    found: list[_Zone] = []
    for path in sorted(folder.glob("intel-rapl:*")):
        name = read_text(path / "name")
        if not name.startswith("package") and name != "dram":
            continue
        zone = _Zone(path, name)
        if zone.last is None:
            continue
        alike = (each for each in found if each.kind == zone.kind and each.shown_by is None)
        zone.shown_by = next((each for each in alike if _shows_the_same(each, zone)), None)
        found.append(zone)
        yield zone


def _shows_the_same(first: _Zone, second: _Zone) -> bool:
    """Return whether two zones show the same counter: two different ones never agree to the microjoule."""
    first.advance()
    second.advance()
    return _between(first, second)


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
