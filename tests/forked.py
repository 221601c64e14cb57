"""Processes that are forked off one that has imported what measures and tracks: each would import it for seconds."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import IO, Any

from llmtrack.run.executors.worker_process import WorkerProcess
from tests.forking import processes

_ASKING = threading.Lock()
"""Two threads that ask a process for its exit code at once, or start another one meanwhile, can read it as 255."""


class Forked:
    """As much of a `subprocess.Popen` as the tests need.

    Args:
        work: what it does; it may end by `sys.exit`.
        arguments: of `work`.
        environment: its variables.
    """

    def __init__(self, work: Callable[..., object], *arguments: object, environment: Mapping[str, str]) -> None:
        context = processes()
        there_in, here_in = context.Pipe(duplex=False)
        here_out, there_out = context.Pipe(duplex=False)
        # A daemon: what a test that failed leaves behind ends with pytest.
        self._process = context.Process(
            target=_run,
            args=(there_in, there_out, dict(environment), os.getcwd(), work, arguments),
            daemon=True,
        )
        with _ASKING:
            self._process.start()
        there_in.close()
        there_out.close()
        self.stdin = _opened(here_in, "w")
        self.stdout = _opened(here_out, "r")

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _ASKING:
            return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        wait([self._process.sentinel], seconds)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("forked", seconds or 0.0)
        return code

    def terminate(self) -> None:
        self._process.terminate()


class ForkedWorker(WorkerProcess):
    """A worker as others are, but for its imports."""

    def _start(self, environment: Mapping[str, str]) -> Any:
        return Forked(_work, environment=environment)


def _work() -> None:
    from llmtrack.worker.process import main

    sys.argv[1:] = [str(os.getppid())]
    main()


def _run(
    there_in: Connection,
    there_out: Connection,
    environment: dict[str, str],
    folder: str,
    work: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # it may start processes of its own
    os.dup2(there_in.fileno(), 0)
    os.dup2(there_out.fileno(), 1)
    there_in.close()
    there_out.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    # As a new Python would take it from there.
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)
    work(*arguments)


def _opened(end: Connection, mode: str) -> IO[str]:
    try:
        return os.fdopen(os.dup(end.fileno()), mode, encoding="utf-8", errors="replace")
    finally:
        end.close()
