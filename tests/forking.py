"""Fork the processes of the tests from one that has imported everything: each would import it for many seconds."""

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
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
from execnet import gateway_io
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.host.libraries import gc_paused
from llmtrack.host.transformers_compat import hidden_from_transformers
from llmtrack.run.executors.worker_process import WorkerProcess
from tests.conftest import HANG_S, PRELOADED
from tests.search_path import with_folders

ROOT = Path(__file__).parents[1]
# Before any test adds a folder of its own.
SEARCH_PATH = with_folders(ROOT)

QUERIES_BEFORE_FORK: list[str] | None = None
"""Where importing all tests queried a GPU; None unless all were imported before this process was forked."""

_EXIT_CODE_LOCK = threading.Lock()
"""If two threads read a process's exit code at once, or one starts a process meanwhile, it can be 255."""


def fork(work: Callable[[], object], files: Iterable[int]) -> int:
    """Call a function in a fork of this process with only these and the standard files open; return the fork's id."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        # A reader of a pipe waits for every process that holds it open.
        for file, following in itertools.pairwise([*sorted({0, 1, 2, *files}), os.sysconf("SC_OPEN_MAX")]):
            os.closerange(file + 1, following)
        # Added by pytest.
        logging.getLogger().handlers.clear()
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


class ForkedModule:
    """`python -m MODULE ARGUMENT...` in a fork of this process, with the methods of `subprocess.Popen` that peers need."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **streams: object) -> None:
        python, option, module, *arguments = command
        assert (python, option) == (sys.executable, "-m")

        def work() -> None:
            os.environ.update(env)
            sys.argv[1:] = arguments
            importlib.import_module(module).main()

        self._process = psutil.Process(fork(work, ()))

    def wait(self, timeout: float) -> None:
        self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()


def fork_instead(python: str, arguments: Sequence[str], passed: Iterable[int]) -> int:
    """Run the program that multiprocessing gives a new Python by `-c` in a fork of this one."""

    def work() -> None:
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        exec(arguments[-1], {})

    return fork(work, passed)


def processes() -> ForkServerContext:
    """Return a context whose processes are forked from one that has imported measuring and tracking."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", SEARCH_PATH)
        forkserver.ensure_running()
    return context


def at_once(work: Callable[..., object], *arguments: object, number: int = 2) -> None:
    """Call a function in several processes at the same time, and check that all succeed."""
    running = [processes().Process(target=work, args=arguments) for _ in range(number)]
    for process in running:
        process.start()
    for process in running:
        process.join(HANG_S)
    assert [process.exitcode for process in running] == [0] * number


class Forked:
    """A forked process with the methods of `subprocess.Popen` that tests need.

    Args:
        work: a function, which may call `sys.exit`.
        arguments: of `work`.
        environment: the process's environment variables.
    """

    def __init__(self, work: Callable[..., object], *arguments: object, environment: Mapping[str, str]) -> None:
        context = processes()
        child_in, parent_in = context.Pipe(duplex=False)
        parent_out, child_out = context.Pipe(duplex=False)
        # A daemon ends with pytest if a failed test leaves it running.
        self._process = context.Process(
            target=_run, args=(child_in, child_out, dict(environment), os.getcwd(), work, arguments), daemon=True
        )
        with _EXIT_CODE_LOCK:
            self._process.start()
        child_in.close()
        child_out.close()
        self.stdin = _opened(parent_in, "w")
        self.stdout = _opened(parent_out, "r")

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _EXIT_CODE_LOCK:
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
    """A worker that imports nothing anew."""

    def _start(self, environment: Mapping[str, str]) -> Any:
        return Forked(work, environment=environment)


@contextlib.contextmanager
def queries_of_gpus() -> Iterator[list[str]]:
    """Record the stacks of queries of a GPU, also if PyTorch is built without CUDA: a fork could no longer use it."""
    import torch

    stacks: list[str] = []
    is_compiled, lazy_init = torch.cuda._is_compiled, torch.cuda._lazy_init
    # They ask first whether PyTorch is built with CUDA, as do modules that only define something.
    queries = {torch.cuda.is_available.__code__, torch.cuda.device_count.__code__}

    def asked() -> bool:
        if sys._getframe(1).f_code in queries:
            stacks.append("".join(traceback.format_stack()))
        return is_compiled()

    def initialized() -> None:
        stacks.append("".join(traceback.format_stack()))
        lazy_init()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "_is_compiled", asked)
        patch.setattr(torch.cuda, "_lazy_init", initialized)
        yield stacks


def import_tests(arguments: Sequence[str]) -> None:
    """Import the tests in pytest's arguments; the workers report those that cannot be imported."""
    global QUERIES_BEFORE_FORK
    targets = [Path(argument.partition("::")[0]).absolute() for argument in arguments]
    with contextlib.ExitStack() as stack:
        for context in (hidden_from_transformers(), gc_paused(), warnings.catch_warnings()):
            stack.enter_context(context)
        warnings.simplefilter("ignore")
        if everything := ROOT / "tests" in targets:
            QUERIES_BEFORE_FORK = stack.enter_context(queries_of_gpus())
        for target in targets:
            for path in sorted(target.rglob("test_*.py")) if target.is_dir() else [target]:
                with contextlib.suppress(Exception, pytest.skip.Exception):
                    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if sys.modules.keys() >= PRELOADED:
            importlib.import_module("tests.preloaded")
        if everything:
            _prepare_hypothesis()


def _prepare_hypothesis() -> None:
    """Let Hypothesis read what it draws from: the categories of characters, and the constants in all imported sources."""

    # The first example is the simplest and draws no constant; later, every twentieth number is one.
    @settings(database=None, derandomize=True, max_examples=5)
    @given(st.text(), st.lists(st.integers(), min_size=100))
    def draw(text: str, numbers: list[int]) -> None:
        pass

    draw()


def fork_workers(count: int) -> None:
    """Fork the next processes that execnet starts from this one."""
    gc.freeze()
    workers = [_Worker() for _ in range(count)]
    start = gateway_io.Popen2IOMaster.__init__

    def take(self: Any, arguments: list[str], execmodel: Any) -> None:
        if not workers:  # a crashed worker is replaced
            start(self, arguments, execmodel)
            return
        self.popen = workers.pop(0)
        gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster.__init__ = take


class _Worker:
    """A fork that executes what it reads, with the methods of `subprocess.Popen` that execnet needs."""

    def __init__(self) -> None:
        child_in, parent_in = os.pipe()
        parent_out, child_out = os.pipe()
        self.pid = fork(lambda: _serve(child_in, child_out), (child_in, child_out))
        os.close(child_in)
        os.close(child_out)
        self.stdin, self.stdout = os.fdopen(parent_in, "wb"), os.fdopen(parent_out, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _serve(child_in: int, child_out: int) -> None:
    """Do what a new Python started by execnet does."""
    for standard, file in enumerate((child_in, child_out)):
        os.dup2(file, standard)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (open(file, mode, closefd=False) for file, mode in enumerate("rww"))  # noqa: SIM115
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    util._exit_function()


def work() -> None:
    from llmtrack.measure import ceilings
    from llmtrack.worker.process import main

    # Measuring this machine's takes each worker a second.
    ceilings.copy_bandwidth = lambda device: 1e10
    ceilings.matrix_rate = lambda device, arithmetic: 1e11
    sys.argv[1:] = [str(os.getppid())]
    main()


def _run(
    child_in: Connection,
    child_out: Connection,
    environment: dict[str, str],
    folder: str,
    work: Callable[..., object],
    arguments: tuple[object, ...],
) -> None:
    multiprocessing.current_process()._config["daemon"] = False  # it may start processes
    os.dup2(child_in.fileno(), 0)
    os.dup2(child_out.fileno(), 1)
    child_in.close()
    child_out.close()
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    # As a new Python would.
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(folder)
    work(*arguments)


def _opened(end: Connection, mode: str) -> IO[str]:
    try:
        return os.fdopen(os.dup(end.fileno()), mode, encoding="utf-8", errors="replace")
    finally:
        end.close()
