"""Detect other programs that were busy during a measurement."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from llmtrack.measure.gpus import ask, card_of, other_pids, torch_uuid

BUSY_SHARE = 0.10
# The counters tick in 10 ms: four readings are uncertain by as many ticks, and a shorter interval resolves no tenth.
_UNCERTAIN_S = 0.04
_LEAST_CPU_S = 0.5


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
    own = psutil.Process().cpu_times()
    return CpuReading(
        everything=total - idle,
        this_process=own.user + own.system,
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
    if available < _LEAST_CPU_S or share <= BUSY_SHARE + _UNCERTAIN_S / available:
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
        listing = ask("--query-compute-apps=pid", "--format=csv,noheader", f"--id={card.uuid}")
        others = other_pids(int(pid) for pid, *_ in listing if pid.isdigit())
    if not others:
        return ()
    shared = ", some maybe in other MIG instances of it" if card.instances else ""
    return (
        f"{len(others)} other process(es) use the GPU {card.name} ({card.uuid}){shared}: stop them and measure again",
    )
