"""Let long work end in order when a signal arrives: once it is asked to stop, a second time it is stopped."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stop_in_order() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether a signal asked to stop; at the end, that signal does what it always did.

    Signals that are ignored stay so: in a worker, Ctrl-C is its parent's business. In a thread other than the main
    one, signals are left alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def ask(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        restore()

    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ask)
    try:
        yield lambda: bool(arrived)
    finally:
        restore()
    if arrived:
        signal.raise_signal(arrived[0])
