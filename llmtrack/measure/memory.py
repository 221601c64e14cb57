"""The memory of this process: its peak, with a reset where the system has one, and what is left to take."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import psutil

from llmtrack.host.machine import control_groups, read_text

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
ROOT = Path("/")

_IN_GROUPS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""Of each version of control groups: the files of the limit and of what is used, and the key of cached files that nobody uses."""


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
    found = []
    for version, group in control_groups("memory", ROOT):
        limit, used, cached = _IN_GROUPS[version]
        counts = dict(line.split(" ", 1) for line in read_text(group / "memory.stat").splitlines() if " " in line)
        # What is cached of files is given back when it is wanted.
        with suppress(ValueError, KeyError):  # no limit (`max`), or none that it may see
            found.append(int(read_text(group / limit)) - int(read_text(group / used)) + int(counts[cached]))
    return found
