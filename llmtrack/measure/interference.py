"""Notice other programs that were busy while a measurement ran."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from llmtrack.measure.gpus import ask, card_of, torch_uuid

BUSY_SHARE = 0.10
# The counters move in hundredths of a second: less CPU time than this tells no share of a tenth.
_LEAST_CPU_S = 2.0


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds used so far by everything on the machine and by this process, and available in all."""

    everything: float
    this_process: float
    available: float


def read_cpu() -> CpuReading:
    """Read the counters of CPU time."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guest time in user time as well, and steal is time that another machine took.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    own = psutil.Process().cpu_times()
    return CpuReading(everything=total - idle, this_process=own.user + own.system, available=total)


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Return the share (0 to 1) of the machine's CPU time that went to others between two readings."""
    available = after.available - before.available
    if available <= 0:
        return 0.0
    others = (after.everything - before.everything) - (after.this_process - before.this_process)
    return max(0.0, others / available)


def busy_warning(before: CpuReading | None, after: CpuReading) -> tuple[str, ...]:
    """Return a warning in words when other programs took a notable share of the CPU time.

    Nothing is known of it without a reading from before.
    """
    if before is None:
        return ()
    share = others_share(before, after)
    if share <= BUSY_SHARE or after.available - before.available < _LEAST_CPU_S:
        return ()
    return (
        f"the machine was busy: other programs took {share:.0%} of its CPU time: close them and measure again",
    )


def gpu_warning(device: str) -> tuple[str, ...]:
    """Return a warning in words when other processes hold the GPU, as far as the driver tells."""
    if not device.startswith("cuda"):
        return ()
    card = card_of(device, torch_uuid(device))
    if card is None:
        return ()
    listing = ask("--query-compute-apps=pid", "--format=csv,noheader", f"--id={card.uuid}")
    others = {int(pid) for pid, *_ in listing if pid.isdigit()} - {os.getpid()}
    if not others:
        return ()
    shared = ", some maybe in other MIG instances of it" if card.instances else ""
    return (
        f"{len(others)} other process(es) use the GPU {card.name} ({card.uuid}){shared}: stop them and measure again",
    )
