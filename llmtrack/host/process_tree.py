"""Watch whether a parent process lives, and kill processes with their children."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import psutil

LOOK_SECONDS = 1.0
"""Polling interval for process exit: only Linux can notify."""

SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})


def kill_tree(process: psutil.Process | int) -> None:
    """Kill a process and its descendants."""
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process) if isinstance(process, int) else process
        # Stop it first, or it could start another child meanwhile.
        with contextlib.suppress(psutil.Error):
            root.suspend()
        for each in (*root.children(recursive=True), root):
            with contextlib.suppress(psutil.Error):
                each.kill()


def kill_children() -> None:
    """Kill all descendants of this process."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process().children():
            kill_tree(child)


def when_parent_ends(parent: int, act: Callable[[], None]) -> None:
    """Call `act` once, in a thread, when this process's parent is no longer `parent`."""
    _when(lambda: os.getppid() != parent, act)


def when_launcher_ends(act: Callable[[], None]) -> Callable[[], None]:
    """Call `act` once, in a thread, when the program that launched this one has ended.

    Shells started to run a single command, as by `mlflow run`, are skipped. A program launched by a person from a shell
    is not watched: it may be meant to outlive the shell.

    Returns:
        A function that ends the watch.
    """
    chain = launcher_of(psutil.Process())
    return _when(lambda: not all(map(_lives, chain)), act) if chain else lambda: None


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


def _lives(process: psutil.Process) -> bool:
    try:
        # `is_running` also compares the start time, as ids are reused.
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
