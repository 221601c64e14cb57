"""Workers of pytest-xdist as forks of the process that started them, once that has imported all tests: each would for many seconds."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

import pytest
from execnet import gateway_io

from llmtrack.compat import unseen_by_transformers
from llmtrack.garbage import uncollected

ROOT = Path(__file__).parents[1]


class ForkedPython:
    """As much of a `subprocess.Popen` as execnet needs: a process that reads from `stdin` what it is to do.

    Args:
        others: those that were forked before.
    """

    def __init__(self, others: Sequence[ForkedPython]) -> None:
        there_in, here_in = os.pipe()
        here_out, there_out = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            # A worker ends when its pipe closes, so that no other may hold that open.
            held = [each.fileno() for other in others for each in (other.stdin, other.stdout)]
            for each in (here_in, here_out, *held):
                os.close(each)
            _serve(there_in, there_out)
        os.close(there_in)
        os.close(there_out)
        self.stdin, self.stdout = os.fdopen(here_in, "wb"), os.fdopen(here_out, "rb")

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _serve(there_in: int, there_out: int) -> NoReturn:
    """Do what execnet has a new Python do."""
    code = 1
    try:
        for here, there in enumerate((there_in, there_out)):
            os.dup2(there, here)
            os.close(there)
        # pytest has put its own there, and among the handlers of what is logged.
        sys.stdin, sys.stdout, sys.stderr = (open(*each, closefd=False) for each in enumerate("rww"))  # noqa: SIM115
        logging.getLogger().handlers.clear()
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
        util._exit_function()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def import_tests(arguments: Sequence[str]) -> None:
    """Import the tests that pytest is asked for, as it would; what cannot be imported is told by the workers."""
    with unseen_by_transformers(), uncollected(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for argument in arguments:
            place = Path(argument.partition("::")[0]).absolute()
            for path in sorted(place.rglob("test_*.py")) if place.is_dir() else [place]:
                with contextlib.suppress(Exception, pytest.skip.Exception):
                    importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def fork_workers(count: int) -> None:
    """Let the next processes that execnet starts be forks of this one."""
    gc.freeze()
    waiting: list[ForkedPython] = []
    for _ in range(count):
        waiting.append(ForkedPython(waiting))
    start = gateway_io.Popen2IOMaster.__init__

    def take(self: Any, arguments: list[str], execmodel: Any) -> None:
        if not waiting:  # one that crashed is followed by another
            start(self, arguments, execmodel)
            return
        self.popen = waiting.pop(0)
        gateway_io.Popen2IO.__init__(self, self.popen.stdin, self.popen.stdout, execmodel=execmodel)

    gateway_io.Popen2IOMaster.__init__ = take
