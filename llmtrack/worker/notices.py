"""Pass on what the preparation of a model logs, so that a user knows what a load waits for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from llmtrack.spec.events import Emit, Log


class _Notices(logging.Handler):
    """Passes the log of slow preparations (export, quantization) on as lines."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.INFO)
        self._emit_event = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit_event(Log(f"  {record.getMessage()}"))


@contextmanager
def notices(emit: Emit) -> Iterator[None]:
    """Tell a user what a load waits for while it is being made."""
    logger, handler = logging.getLogger("llmtrack"), _Notices(emit)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
