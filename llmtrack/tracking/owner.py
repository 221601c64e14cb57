"""Tag the process that writes a run, to distinguish abandoned runs from live ones."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import psutil

from llmtrack.host.machine import in_pid_namespace, pid_namespace, read_text, sysctl
from llmtrack.spec.serialization import digest

TAG = "llmtrack.process"
ABANDONED = "its process exited without reporting: it was killed (SIGKILL), or the machine stopped"
"""Reason of a run whose process has exited."""

PROC = Path("/proc")
_DEAD = frozenset("ZXx")


def host_id() -> str:
    """Return a stable id of this machine or container."""
    names = (read_text(Path("/etc/machine-id")), platform.node(), pid_namespace())
    return digest(names)


def this_process() -> str:
    """Identify this process: machine, boot, process id, and process start."""
    return " ".join((host_id(), boot_id(), str(os.getpid()), started(os.getpid()) or "?"))


def is_gone(owner: str) -> bool:
    """Return True if the tagged process ran here and has exited."""
    parts = owner.split(" ")
    if len(parts) != 4 or parts[0] != host_id() or not parts[2].isdigit():
        return False
    _, boot, pid, since = parts
    if boot != boot_id():
        # A container on another machine may have the same names.
        return bool(read_text(Path("/etc/machine-id"))) and not in_pid_namespace()
    # Process ids are reused, but not with the same start time.
    return started(int(pid)) != since


def started(pid: int) -> str | None:
    """Return the start time of a live process in system units, or None."""
    if PROC.joinpath("self", "stat").exists():
        # The command, in parentheses, may itself contain parentheses and spaces.
        fields = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in _DEAD else None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


@cache
def boot_id() -> str:
    """Return an id of the machine's current boot."""
    boot = read_text(PROC / "sys/kernel/random/boot_id") or sysctl("kern.bootsessionuuid")
    return boot.replace(" ", "") or "?"
