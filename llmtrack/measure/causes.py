"""Explain what throttled a device during timing, from its counters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llmtrack.devices import on_gpu
from llmtrack.measure.gauge import Interval

SLOWED_SHARE = 0.05
"""Share of the time from which throttling is reported."""

CLOCK_CHANGE = 0.10
"""Clock change between calls, as a share of the highest clock, from which it is reported."""


@dataclass(frozen=True)
class Cause:
    """Why a device was slower than it can be.

    Attributes:
        words: the message, with the remedy.
        passing: whether it may be temporary, so that other runs should not be compared with this one; a power cap is a
            permanent setting.
    """

    words: str
    passing: bool


def causes(intervals: Sequence[Interval], device: str) -> tuple[Cause, ...]:
    """Return the causes of throttling from readings before and after each timed call.

    Time counters are summed over the calls. A reason that only has a momentary flag counts by the share of calls after
    which it was set.
    """
    if not intervals:
        return ()
    what = "the GPU" if on_gpu(device) else "the CPU"
    return (*_held_back(intervals, what), *_clock(intervals, what))


def _held_back(intervals: Sequence[Interval], what: str) -> Iterator[Cause]:
    seconds = sum(after.at - before.at for before, after in intervals)
    said = set()
    for name, held in _grown(intervals, "slowed_s").items():
        if seconds > 0 and held / seconds > SLOWED_SHARE:
            said.add(name)
            yield _cause(what, name, f"for {min(held / seconds, 1.0):.0%} of the time", intervals)
    for name, times in _grown(intervals, "slowed_times").items():
        if times > 0 and name not in said:
            said.add(name)
            yield _cause(what, name, f"{times:.0f} times", intervals)
    for name in sorted({reason for _, after in intervals for reason in after.reasons} - said):
        after_calls = sum(name in after.reasons for _, after in intervals)
        if after_calls / len(intervals) > SLOWED_SHARE:
            yield _cause(what, name, f"after {after_calls} of {len(intervals)} calls", intervals)


def _grown(intervals: Sequence[Interval], counters: str) -> dict[str, float]:
    """Return the increase of each counter during the calls."""
    grown: dict[str, float] = {}
    for before, after in intervals:
        first, last = getattr(before, counters), getattr(after, counters)
        for name in first.keys() & last.keys():
            grown[name] = grown.get(name, 0.0) + last[name] - first[name]
    return dict(sorted(grown.items()))


def _cause(what: str, name: str, how_often: str, intervals: Sequence[Interval]) -> Cause:
    heats = [after.temperature_c for _, after in intervals if after.temperature_c is not None]
    hottest = f" (up to {max(heats):.0f} °C)" if heats and name == "heat" else ""
    remedy = {
        "heat": ": cool it, and measure again",
        "its power cap": ": its speed is that under this cap",
        "the CPU quota of its control group": ": give it more CPU time, or fewer threads",
    }.get(name, ": measure again")
    return Cause(f"{what} was held back by {name}{hottest} {how_often}{remedy}", name != "its power cap")


def _clock(intervals: Sequence[Interval], what: str) -> Iterator[Cause]:
    clocks = [after.clock_mhz for _, after in intervals if after.clock_mhz]
    if len(clocks) > 1 and min(clocks) < (1 - CLOCK_CHANGE) * max(clocks):
        yield Cause(
            f"the clock of {what} moved between {min(clocks):,.0f} and {max(clocks):,.0f} MHz: warm "
            "up for longer, and measure again",
            True,
        )


def other_processes(intervals: Sequence[Interval]) -> frozenset[int]:
    """Return the other processes that used the device at any reading."""
    return frozenset().union(*(each.others for interval in intervals for each in interval))
