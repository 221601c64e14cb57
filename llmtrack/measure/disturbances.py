"""What disturbed a measurement: throttling of the device, and other programs on the CPU or GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from llmtrack.devices import on_gpu
from llmtrack.measure.gauges import Interval
from llmtrack.measure.gpus import card_of, other_pids, query_driver, torch_uuid

SLOWED_SHARE = 0.05
"""Share of the time from which throttling is reported."""

CLOCK_CHANGE = 0.10
"""Clock change between calls, as a share of the highest clock, from which it is reported."""

BUSY_SHARE = 0.10
"""Share of the CPU time used by other programs from which the machine counts as busy."""

# The counters tick in 10 ms: four readings are uncertain by as many ticks, and a shorter interval resolves no tenth.
_UNCERTAIN_S = 0.04
_MIN_CPU_S = 0.5


@dataclass(frozen=True)
class Cause:
    """Why a device was slower than it can be.

    Attributes:
        message: the cause, with the remedy.
        temporary: whether other runs should not be compared with this one; a power cap is a permanent setting.
    """

    message: str
    temporary: bool


def throttle_causes(intervals: Sequence[Interval], device: str) -> tuple[Cause, ...]:
    """Return the causes of throttling from readings before and after each timed call.

    Time counters are summed over the calls. A reason that only has a momentary flag counts by the share of calls after
    which it was set.
    """
    if not intervals:
        return ()
    processor = "the GPU" if on_gpu(device) else "the CPU"
    return (*_throttled(intervals, processor), *_clock_changed(intervals, processor))


def other_processes(intervals: Sequence[Interval]) -> frozenset[int]:
    """Return the other processes that used the device at any reading."""
    return frozenset().union(*(reading.others for interval in intervals for reading in interval))


@dataclass(frozen=True)
class CpuReading:
    """Cumulative CPU seconds.

    Attributes:
        everything: used by the whole machine, including steal time.
        this_process: used by this process.
        available: of all CPUs.
        stolen: steal time, given by the host to other virtual machines.
    """

    everything: float
    this_process: float
    available: float
    stolen: float = 0.0


def read_cpu() -> CpuReading:
    """Read the counters of CPU time."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux includes guest time in user time; steal is time taken by other virtual machines.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    process = psutil.Process().cpu_times()
    return CpuReading(
        everything=total - idle,
        this_process=process.user + process.system,
        available=total,
        stolen=getattr(times, "steal", 0.0),
    )


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Return the share (0 to 1) of the machine's CPU time that others used between two readings."""
    available = after.available - before.available
    if available <= 0:
        return 0.0
    others = (after.everything - before.everything) - (after.this_process - before.this_process)
    # Rounding, and an iowait counter that may decrease, can push it above 1.
    return min(1.0, max(0.0, others / available))


def busy_warning(before: CpuReading | None, after: CpuReading) -> tuple[str, ...]:
    """Warn if other programs used a notable share of the CPU time; without a first reading nothing is known."""
    if before is None:
        return ()
    available, share = after.available - before.available, others_share(before, after)
    if available < _MIN_CPU_S or share <= BUSY_SHARE + _UNCERTAIN_S / available:
        return ()
    stolen = max(0.0, after.stolen - before.stolen) / available
    if stolen > share / 2:
        return (
            f"the machine was busy: its host gave {stolen:.0%} of its CPU time to other virtual machines (steal), and "
            f"programs on it took {max(0.0, share - stolen):.0%}: measure again at another time or on another machine",
        )
    return (f"the machine was busy: other programs took {share:.0%} of its CPU time: close them and measure again",)


def gpu_warning(device: str, others: frozenset[int] | None = None) -> tuple[str, ...]:
    """Warn if other processes use the GPU, as far as the driver reports.

    Args:
        others: known other processes; None to ask the driver.
    """
    if not device.startswith("cuda") or others == frozenset():
        return ()
    card = card_of(device, torch_uuid(device))
    if card is None:
        return ()
    if others is None:
        rows = query_driver("--query-compute-apps=pid", "--format=csv,noheader", f"--id={card.uuid}")
        others = other_pids(int(pid) for pid, *_ in rows if pid.isdigit())
    if not others:
        return ()
    shared = ", some maybe in other MIG instances of it" if card.instances else ""
    return (
        f"{len(others)} other process(es) use the GPU {card.name} ({card.uuid}){shared}: stop them and measure again",
    )


def _throttled(intervals: Sequence[Interval], processor: str) -> Iterator[Cause]:
    seconds = sum(after.at - before.at for before, after in intervals)
    reported = set()
    for name, slowed in _increases(intervals, "slowed_s").items():
        if seconds > 0 and slowed / seconds > SLOWED_SHARE:
            reported.add(name)
            yield _cause(processor, name, f"for {min(slowed / seconds, 1.0):.0%} of the time", intervals)
    for name, times in _increases(intervals, "slowed_times").items():
        if times > 0 and name not in reported:
            reported.add(name)
            yield _cause(processor, name, f"{times:.0f} times", intervals)
    for name in sorted({reason for _, after in intervals for reason in after.reasons} - reported):
        calls = sum(name in after.reasons for _, after in intervals)
        if calls / len(intervals) > SLOWED_SHARE:
            yield _cause(processor, name, f"after {calls} of {len(intervals)} calls", intervals)


def _increases(intervals: Sequence[Interval], counters: str) -> dict[str, float]:
    """Return the increase of each counter during the calls, by name."""
    increases: dict[str, float] = {}
    for before, after in intervals:
        first, last = getattr(before, counters), getattr(after, counters)
        for name in first.keys() & last.keys():
            increases[name] = increases.get(name, 0.0) + last[name] - first[name]
    return dict(sorted(increases.items()))


def _cause(processor: str, name: str, how_often: str, intervals: Sequence[Interval]) -> Cause:
    temperatures = [after.temperature_c for _, after in intervals if after.temperature_c is not None]
    hottest = f" (up to {max(temperatures):.0f} °C)" if temperatures and name == "heat" else ""
    remedy = {
        "heat": ": cool it, and measure again",
        "its power cap": ": its speed is that under this cap",
        "the CPU quota of its control group": ": give it more CPU time, or fewer threads",
    }.get(name, ": measure again")
    return Cause(f"{processor} was held back by {name}{hottest} {how_often}{remedy}", name != "its power cap")


def _clock_changed(intervals: Sequence[Interval], processor: str) -> Iterator[Cause]:
    clocks = [after.clock_mhz for _, after in intervals if after.clock_mhz]
    if len(clocks) > 1 and min(clocks) < (1 - CLOCK_CHANGE) * max(clocks):
        yield Cause(
            f"the clock of {processor} moved between {min(clocks):,.0f} and {max(clocks):,.0f} MHz: warm "
            "up for longer, and measure again",
            True,
        )
