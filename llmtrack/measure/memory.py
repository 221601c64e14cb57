"""Peak and available memory of this process."""

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
"""By control-group version: the files of the limit and the usage, and the key of reclaimable page cache."""


def reset_peak_rss() -> bool:
    """Reset the peak; return False if the system only knows the peak since process start."""
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
    """Return the bytes available without swapping: of the machine, or under this process's tightest limit."""
    return max(0, min([psutil.virtual_memory().available, *_room_in_groups(), *_room_in_limits()]))


def _room_in_limits() -> list[int]:
    """Return the bytes left under this process's resource limits (`ulimit -v`, `ulimit -d`)."""
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
    """Return the bytes left under each control-group memory limit of this process."""
    found = []
    for version, group in control_groups("memory", ROOT):
        limit, used, cached = _IN_GROUPS[version]
        counts = dict(line.split(" ", 1) for line in read_text(group / "memory.stat").splitlines() if " " in line)
        # Page cache is reclaimed on demand.
        with suppress(ValueError, KeyError):  # unlimited (`max`), or not visible
            found.append(int(read_text(group / limit)) - int(read_text(group / used)) + int(counts[cached]))
    return found
