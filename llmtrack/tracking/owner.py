"""Which process a run is written by, so that a run whose process is gone can be told from one that goes on."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import psutil

from llmtrack.host.machine import in_pid_namespace, pid_namespace, read_text, sysctl
from llmtrack.spec.serialization import digest

TAG = "llmtrack.process"
REASON = "its process ended without a word: it was killed (SIGKILL), or the machine stopped"
"""Why a run is killed whose process is gone."""

PROC = Path("/proc")
_DEAD = frozenset("ZXx")


def host_id() -> str:
    """Return what tells this machine, or container, from others: it stays the same when it is started anew."""
    names = (read_text(Path("/etc/machine-id")), platform.node(), _namespace())
    return digest(names)


def this_process() -> str:
    """Return the value of the tag: machine, its start, process id, and start of the process."""
    return " ".join((host_id(), boot_id(), str(os.getpid()), started(os.getpid()) or "?"))


def is_gone(owner: str) -> bool:
    """Return whether the process that a tag names was of this machine, and has ended; False where that is not known."""
    parts = owner.split(" ")
    if len(parts) != 4 or parts[0] != host_id() or not parts[2].isdigit():
        return False
    _, boot, pid, since = parts
    if boot != boot_id():
        # In a container, the same names may belong to one that runs on another machine.
        return bool(read_text(Path("/etc/machine-id"))) and not _in_container()
    # Process ids are used again, but not with the same start.
    return started(int(pid)) != since


def started(pid: int) -> str | None:
    """Return what tells the start of a process that lives, in the system's own terms; None if there is none."""
    if PROC.joinpath("self", "stat").exists():
        # The command, in brackets, may hold brackets and spaces itself.
        fields = read_text(PROC / str(pid) / "stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in _DEAD else None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return None


@cache
def boot_id() -> str:
    """Return what tells one start of the machine from the next."""
    found = read_text(PROC / "sys/kernel/random/boot_id") or sysctl("kern.bootsessionuuid")
    return found.replace(" ", "") or "?"


_namespace, _in_container = pid_namespace, in_pid_namespace
