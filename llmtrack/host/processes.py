"""Start child processes in an environment of their own, watch parents, and kill processes with their children."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import uuid
from collections.abc import Callable

import psutil

from llmtrack.version import FOLDER

WORKER = "llmtrack.worker.process"
"""The module that a worker process runs."""

OUT_OF_MEMORY = 99
"""Exit code of a worker that ran out of memory."""

SCRATCH = "LLMTRACK_SCRATCH"
"""Environment variable with a worker's scratch folder for its own children; the parent of the worker removes it.

A killed worker cannot clean up, and conversions take gigabytes.
"""

LOOK_SECONDS = 1.0
"""Polling interval for process exit: only Linux can notify."""

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def child_environment() -> dict[str, str]:
    """Return this process's environment with this llmtrack first on PYTHONPATH."""
    source = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def unused_folder() -> str:
    """Return the path of a new temporary folder, or an empty text if there is no place for one."""
    with contextlib.suppress(OSError):
        return os.path.join(tempfile.gettempdir(), f"llmtrack-{uuid.uuid4().hex}")
    return ""


def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder for a child process, in the scratch folder if there is one."""
    scratch = os.environ.get(SCRATCH) or None
    if scratch:
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="llmtrack-", dir=scratch)


def kill_tree(process: psutil.Process | int) -> None:
    """Kill a process and its descendants."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process) if isinstance(process, int) else process
        # Stop it first, or it could start another child meanwhile.
        with contextlib.suppress(psutil.Error):
            root.suspend()
        for member in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.Error):
                member.kill()


def kill_children() -> None:
    """Kill all descendants of this process."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            kill_tree(child)


def when_parent_ends(parent: int, act: Callable[[], None]) -> None:
    """Call `act` once, in a thread, when this process's parent is no longer `parent`."""
    _when(lambda: os.getppid() != parent, act)


def when_launcher_ends(act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` once, in a thread, when the program that launched this one ends; return a function to stop watching.

    Shells started to run a single command, as by `mlflow run`, are skipped. A program launched by a person from a shell
    is not watched: it may be meant to outlive the shell.
    """
    chain = launcher_of(psutil.Process())
    return _when(lambda: not all(map(_is_alive, chain)), act) if chain else lambda: None


def launcher_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the single-command shells above a process and the program above them; empty if that is an interactive
    shell.
    """
    chain: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for parent in process.parents():
            shell = parent.name().lstrip("-") in SHELLS
            runs_one_command = shell and any(word.startswith("-") and "c" in word for word in parent.cmdline()[1:2])
            if shell and not runs_one_command:
                return []
            chain.append(parent)
            if not shell:
                return chain
    return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        # `is_running` also compares the start time, as ids are reused.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _when(happened: Callable[[], bool], act: Callable[[], None]) -> Callable[[], None]:
    stopped = threading.Event()

    def watch() -> None:
        while not happened():
            if stopped.wait(LOOK_SECONDS):
                return
        act()

    threading.Thread(target=watch, name="llmtrack-watch", daemon=True).start()
    return stopped.set
