"""Notice other programs that were busy while a measurement ran."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from llmtrack.measure.gpus import ask, card_of, other_pids, torch_uuid

BUSY_SHARE = 0.10
# The counters move in hundredths of a second: less CPU time than this tells no share of a tenth.
_LEAST_CPU_S = 2.0


@dataclass(frozen=True)
class CpuReading:
    """CPU seconds used so far by everything on the machine and by this process, and available in all.

    Attributes:
        everything: used, the time that the host of a virtual machine gave to others included.
        this_process: used by this process.
        available: of all CPUs.
        stolen: of `everything`, what the host gave to others (steal).
    """

    everything: float
    this_process: float
    available: float
    stolen: float = 0.0


def read_cpu() -> CpuReading:
    """Read the counters of CPU time."""
    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Linux counts guest time in user time as well, and steal is time that another machine took.
    total = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    own = psutil.Process().cpu_times()
    return CpuReading(
        everything=total - idle,
        this_process=own.user + own.system,
        available=total,
        stolen=getattr(times, "steal", 0.0),
    )


def others_share(before: CpuReading, after: CpuReading) -> float:
    """Return the share (0 to 1) of the machine's CPU time that went to others between two readings."""
    available = after.available - before.available
    if available <= 0:
        return 0.0
    others = (after.everything - before.everything) - (after.this_process - before.this_process)
    # Rounding, and a counter of waiting that may run back, can make it more than all.
    return min(1.0, max(0.0, others / available))


def busy_warning(before: CpuReading | None, after: CpuReading) -> tuple[str, ...]:
    """Return a warning in words when other programs took a notable share of the CPU time.

    Nothing is known of it without a reading from before.
    """
    if before is None:
        return ()
    share = others_share(before, after)
    if share <= BUSY_SHARE or after.available - before.available < _LEAST_CPU_S:
        return ()
    stolen = max(0.0, after.stolen - before.stolen) / (after.available - before.available)
    if stolen > share / 2:
        return (
            f"the machine was busy: its host gave {stolen:.0%} of its CPU time to other virtual machines (steal), and "
            f"programs on it took {max(0.0, share - stolen):.0%}: measure again at another time or on another machine",
        )
    return (f"the machine was busy: other programs took {share:.0%} of its CPU time: close them and measure again",)


def gpu_warning(device: str, others: frozenset[int] | None = None) -> tuple[str, ...]:
    """Return a warning in words when other processes hold the GPU, as far as the driver tells.

    Args:
        device: as `resolve_device` names it.
        others: the processes that were seen; None: the driver is asked.
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
