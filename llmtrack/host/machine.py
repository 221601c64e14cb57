"""Read facts from the operating system, as text; empty if unknown."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath


def read_text(path: Path) -> str:
    """Read a small system file; return an empty text if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Return the id of this process's PID namespace."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def in_pid_namespace() -> bool:
    """Return whether this process has a PID namespace of its own, as in a container."""
    # The inode number of the initial namespace is fixed in the kernel.
    return pid_namespace() not in ("", "pid:[4026531836]")


def sysctl(name: str) -> str:
    """Return a macOS kernel value; empty elsewhere."""
    try:
        result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return result.stdout.strip()


def cpu_flags() -> frozenset[str]:
    """Return the CPU's instruction sets by their Linux names, lower case; empty if unknown."""
    return frozenset(_cpuinfo("flags", "Features").lower().split())


def cpu_model() -> str:
    """Return the CPU's name; empty if unknown."""
    name = _cpuinfo("model name", "Hardware", "Model")
    if not name and platform.system() == "Darwin":
        return sysctl("machdep.cpu.brand_string")
    return name or platform.processor()


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Yield version (2 or 1) and folder of this process's control groups and their parents for a controller (`cpu` ...).

    A container may see only the mount itself.
    """
    mount = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        controllers, _, group = line.partition(":")[2].partition(":")
        if not controllers:
            version, mounts = 2, (mount, mount / "unified")
        elif controller in controllers.split(","):
            version, mounts = 1, (mount / controllers, mount / controller)
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        for base in dict.fromkeys(mounts):
            yield from ((version, base / part) for part in (path, *path.parents))


@cache
def _cpuinfo(*keys: str) -> str:
    """Return the first non-empty value of the given keys in /proc/cpuinfo."""
    entries = (line.partition(":") for line in read_text(Path("/proc/cpuinfo")).splitlines())
    return next((" ".join(v.split()) for k, _, v in entries if k.strip() in keys and v.strip()), "")
