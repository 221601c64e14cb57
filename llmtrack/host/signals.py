"""Let work end in order when a signal arrives, however many more arrive meanwhile.

Launchers send several: `mlflow run` passes Ctrl-C on as SIGTERM, and a service is told to stop process by process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType

STOPPING = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""What asks a program to end: Ctrl-C, a launcher, a terminal that is closed."""

_ENDING = b"llmtrack: ending already; nothing that was measured is lost\n"


class Terminated(BaseException):
    """A signal other than Ctrl-C's asked to end.

    Attributes:
        number: which.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def stop_in_order() -> Iterator[Callable[[], bool]]:
    """Hold signals back; yield a function that tells whether one came; at the end, the first does what it always did.

    Signals that are ignored stay so: in a worker, Ctrl-C is its parent's business. In a thread other than the main
    one, signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    arrived: list[int] = []
    before = _handle(lambda number, frame: arrived.append(number))
    try:
        yield lambda: bool(arrived)
    finally:
        _restore(before)
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def signals_end() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt or Terminated; those after it do not cut short what is done then.

    In a thread other than the main one, signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(number: int, frame: FrameType | None) -> None:
        _handle(late)
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    def late(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, _ENDING)  # a handler may interrupt a print, so it must not print

    before = _handle(first)
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Have what a library does to the handling of signals undone: how this process ends is its own business."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in STOPPING if (handler := signal.getsignal(number)) is not None}
    try:
        yield
    finally:
        _restore(before)


def interrupt_in_a_line() -> None:
    """Let Ctrl-C end this program in a line even while it imports what it needs, which takes seconds."""
    before = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = told


def stay_ended() -> None:
    """Have the process exit with its code, which a signal's is, although more signals arrive while Python ends."""
    atexit.register(_handle, signal.SIG_IGN)


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> dict[int, object]:
    """Set the handler of all signals that are not ignored; return what was set."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    heeded = {number: was for number, was in before.items() if was not in (signal.SIG_IGN, None)}
    for number in heeded:
        signal.signal(number, handler)
    return dict(heeded)


def _restore(before: Mapping[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


def _leave_terminal() -> None:
    """Let what is printed from now on go nowhere: the terminal is gone, and printing to it would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(nowhere, descriptor)
    os.close(nowhere)
