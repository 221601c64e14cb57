"""End in order after a signal, even if more follow.

Launchers send several: `mlflow run` turns Ctrl-C into SIGTERM, and a service manager signals process by process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType

STOPPING = tuple(
    number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)
"""Signals that request termination: Ctrl-C, a launcher, a closed terminal."""

REPEAT_SECONDS = 0.01
"""Interval at which a signal that arrived in a finalizer is repeated, until it arrives elsewhere."""
_ENDING = b"llmtrack: already ending; nothing that was measured is lost\n"


class Terminated(BaseException):
    """A termination signal other than Ctrl-C arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def defer_signals() -> Iterator[Callable[[], bool]]:
    """Defer signals: yield a function that returns whether one has arrived; on exit, deliver the first.

    Ignored signals stay ignored: in a worker, Ctrl-C is handled by its parent. No effect outside the main thread.
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
def end_on_signal() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt or Terminated; later ones do not interrupt the cleanup.

    No effect outside the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    lock = threading.RLock()  # a handler may interrupt another
    arrived, in_hook = True, False

    def first(number: int, frame: FrameType | None) -> None:
        nonlocal arrived
        if in_hook:
            return  # an exception raised there is dropped, too: it is repeated
        with lock:
            arrived = True
        _handle(late)
        if number == getattr(signal, "SIGHUP", None):
            _leave_terminal()
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)

    def late(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, _ENDING)  # a handler may interrupt a print, so it must not print

    def repeat(lost: sys.UnraisableHookArgs) -> None:
        """Repeat a signal that arrived in a finalizer, whose exceptions Python drops."""
        if not issubclass(lost.exc_type, (KeyboardInterrupt, Terminated)):
            report(lost)
            return
        nonlocal arrived, in_hook
        number = lost.exc_value.number if isinstance(lost.exc_value, Terminated) else signal.SIGINT
        arrived, in_hook = False, True
        try:
            _handle(first)
            threading.Thread(target=send, args=(number,), daemon=True).start()
        finally:
            in_hook = False

    def send(number: int) -> None:
        while not arrived:
            time.sleep(REPEAT_SECONDS)
            with lock:
                if not arrived:
                    os.kill(os.getpid(), number)

    report, sys.unraisablehook = sys.unraisablehook, repeat
    before = _handle(first)
    try:
        yield
    finally:
        with lock:
            arrived = True
        _restore(before)
        sys.unraisablehook = report


@contextmanager
def signal_handlers_restored() -> Iterator[None]:
    """Restore the signal handlers on exit, since libraries may replace them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in STOPPING if (handler := signal.getsignal(number)) is not None}
    try:
        yield
    finally:
        _restore(before)


def print_interrupt_in_one_line() -> None:
    """Make Ctrl-C print one line instead of a traceback, even during slow imports."""
    before = sys.excepthook

    def print_one_line(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = print_one_line


def ignore_signals_at_exit() -> None:
    """Ignore signals during interpreter exit, to keep the exit code."""
    atexit.register(_handle, signal.SIG_IGN)


def _handle(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> dict[int, object]:
    """Set the handler of all signals that are not ignored; return the previous handlers."""
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    before: dict[int, object] = {n: old for n, old in handlers.items() if old not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handler)
    return before


def _restore(before: Mapping[int, object]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)  # type: ignore[arg-type]


def _leave_terminal() -> None:
    """Redirect output to the null device: the terminal is gone and printing would fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                os.dup2(null, descriptor)
    os.close(null)
