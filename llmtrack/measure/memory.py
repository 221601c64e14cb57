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
    """Return the bytes that can be taken without swapping: of the machine, or under the tightest limit of this process."""
    return max(0, min([psutil.virtual_memory().available, *_room_in_groups(), *_room_in_limits()]))


def _room_in_limits() -> list[int]:
    """Return the bytes that are left under this process's limits (`ulimit -v`, `ulimit -d`)."""
    try:
        import resource
    except ImportError:  # Windows has none
        return []
    used = psutil.Process().memory_info()
    found = []
    for kind, taken in (("RLIMIT_AS", used.vms), ("RLIMIT_DATA", getattr(used, "data", 0))):
        limit = resource.getrlimit(getattr(resource, kind))[0]
        if limit != resource.RLIM_INFINITY:
            found.append(limit - taken)
    return found


def _room_in_groups() -> list[int]:
    """Return the bytes that are left under each memory limit of a control group that this process is under."""
    try:
        lines = [line.split(":", 2) for line in CGROUP.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for _, controllers, own in (line for line in lines if len(line) == 3):
        if not controllers:
            found += _room_above(CGROUPS, own, ("memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):  # version 1
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            found += _room_above(CGROUPS / "memory", own, names)
    return found


def _room_above(root: Path, own: str, names: tuple[str, str, str]) -> list[int]:
    """Return the bytes that are left in a control group and in each above it that has a limit.

    Args:
        root: where the hierarchy is mounted.
        own: path of the group in it.
        names: the files of the limit and of what is used, and the key of the cached files that nobody uses.
    """
    group = root / own.lstrip("/")
    found = []
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            break
        try:
            limit, used = (int((folder / name).read_text()) for name in names[:2])
            # What is cached of files is given back when it is wanted.
            cached = next(
                int(line.split()[1])
                for line in (folder / "memory.stat").read_text().splitlines()
                if line.startswith(f"{names[2]} ")
            )
            found.append(limit - used + cached)
        except (OSError, ValueError, StopIteration):  # no limit (`max`), or none that it may see
            continue
    return found
