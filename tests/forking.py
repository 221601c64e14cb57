"""Processes of the tests that are forks of one that has imported what they need: each would import it for many seconds."""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any

import pytest
from execnet import gateway_io

from llmtrack.host.libraries import gc_paused
from llmtrack.host.transformers_compat import hidden_from_transformers
from llmtrack.run.executors.worker_process import WorkerProcess
from tests.conftest import HANG_S
from tests.search_path import with_folders

ROOT = Path(__file__).parents[1]
# As it is before any test puts a folder of its own there.
SEARCH_PATH = with_folders(ROOT)


def fork(work: Callable[[], object], kept: Iterable[int]) -> int:
    """Do work in a fork of this process, which has these files and the standard ones open; return the fork's id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        # A process that waits for the end of a pipe would wait for whoever else holds it open.
        for one, following in itertools.pairwise([*sorted({0, 1, 2, *kept}), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(one + 1, following)
        # pytest has put its own there.
        logging.getLogger().handlers.clear()
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def fork_instead(python: str, arguments: Sequence[str], passed: Iterable[int]) -> int:
    """Run what multiprocessing gives a new Python by `-c` in a fork of this one."""

    def work() -> None:
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        exec(arguments[-1], {})

    return fork(work, passed)


def processes() -> ForkServerContext:
    """Return a context whose processes are forked off one that has imported what measures and tracks."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SEARCH_PATH)
        forkserver.ensure_running()
    return context


def at_once(work: Callable[..., object], *arguments: object, number: int = 2) -> None:
    """Call a function in processes of their own at the same time, and see that all of them end well."""
    called = [processes().Process(target=work, args=arguments) for _ in range(number)]
    for each in called:
        each.start()
    for each in called:
        each.join(HANG_S)
    assert [each.exitcode for each in called] == [0] * number


class _Worker:
    """A fork as execnet wants a `subprocess.Popen`: it does what it reads."""

    def __init__(self) -> None:
        there_in, here_in = os.pipe()
        here_out, there_out = os.pipe()
        self.pid = fork(lambda: _serve(there_in, there_out), (there_in, there_out))
        os.close(there_in)
        os.close(there_out)
        self.stdin, self.stdout = os.fdopen(here_in, "wb"), os.fdopen(here_out, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _serve(there_in: int, there_out: int) -> None:
    """Do what execnet has a new Python do."""
    for here, there in enumerate((there_in, there_out)):
        os.dup2(there, here)
        os.close(there)
    sys.stdin, sys.stdout, sys.stderr = (open(*each, closefd=False) for each in enumerate("rww"))  # noqa: SIM115
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    util._exit_function()


def import_tests(arguments: Sequence[str]) -> None:
    """Import the tests that pytest is asked for, as it would; what cannot be imported is told by the workers."""
    with hidden_from_transformers(), gc_paused(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for argument in arguments:
            place = Path(argument.partition("::")[0]).absolute()
            for path in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
                with contextlib.suppress(Exception, pytest.skip.Exception):
                    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def fork_workers(count: int) -> None:
    """Let the next processes that execnet starts be forks of this one."""
    gc.freeze()
    waiting = [_Worker() for _ in range(count)]
    start = gateway_io.Popen2IOMaster.__init__

    def take(self: Any, arguments: list[str], execmodel: Any) -> None:
        if not waiting:  # one that crashed is followed by another
            start(self, arguments, execmodel)
            return
        self.popen = waiting.pop(0)
        gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster.__init__ = take


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
