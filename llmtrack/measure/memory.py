"""The memory of this process: its peak, with a reset where the system has one, and what is left to take."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def reset_peak_rss() -> bool:
    """Begin a new peak reading; return False where the system only knows the peak since process start."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Return the peak resident set in bytes since the last reset, or since process start without one."""
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> int:
    """Return the bytes that can be taken without swapping: of the machine, or of a container's limit if that is less."""
    return min([psutil.virtual_memory().available, *_room_in_groups()])


def _room_in_groups() -> list[int]:
    """Return the bytes that are left under each memory limit (of cgroups, version 2) that this process is under."""
    try:
        own = next(line[3:] for line in CGROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = CGROUPS / own.lstrip("/")
    found = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(CGROUPS):
            break
        try:
            limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
            # What is cached of files is given back when it is wanted.
            cached = next(
                int(line.split()[1])
                for line in (folder / "memory.stat").read_text().splitlines()
                if line.startswith("inactive_file ")
            )
            found.append(int(limit) - int(used) + cached)
        except (OSError, ValueError, StopIteration):  # no limit (`max`), or none that it may see
            continue
    return found
