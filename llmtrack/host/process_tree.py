"""Processes of the system: whether a parent still lives, and how to end one with all its children."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import psutil

LOOK_SECONDS = 1.0
"""How often to look whether a process is still there: no system but Linux can be asked to tell."""

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def kill_tree(process: psutil.Process | int) -> None:
    """Kill a process and all that it started."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process) if isinstance(process, int) else process
        # Stopped first, or it could start another one meanwhile.
        with contextlib.suppress(psutil.Error):
            root.suspend()
        for each in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.Error):
                each.kill()


def kill_children() -> None:
    """Kill everything that this process started."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            kill_tree(child)


def when_parent_ends(parent: int, act: Callable[[], None]) -> None:
    """Call `act` once, in a thread, when this process's parent is no longer the process `parent`."""
    _when(lambda: os.getppid() != parent, act)


def when_launcher_ends(act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` once, in a thread, when the program that launched this one has ended.

    Between the two there may be shells that were started to run one command, as `mlflow run` does. Nothing is called
    if a person launched it from a shell: it may be meant to outlive that. Return what ends the watch.
    """
    chain = launcher_of(psutil.Process())
    return _when(lambda: not all(map(_lives, chain)), act) if chain else lambda: None


def launcher_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the shells above a process that run one command, and the program above them; nothing if that is a shell."""
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


def _lives(process: psutil.Process) -> bool:
    try:
        # `is_running` compares the time of its start, too: ids are used again.
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _when(happened: Callable[[], bool], act: Callable[[], None]) -> Callable[[], None]:
    given_up = threading.Event()

    def watch() -> None:
        while not happened():
            if given_up.wait(LOOK_SECONDS):
                return
        act()

    threading.Thread(target=watch, name="llmtrack-watch", daemon=True).start()
    return given_up.set
