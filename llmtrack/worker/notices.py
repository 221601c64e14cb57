"""Forward the log of model preparation, so that the user knows what a load is waiting for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from llmtrack.spec.events import Emit, Log


class _Notices(logging.Handler):
    """Emits log records of slow preparations (export, quantization) as lines."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.INFO)
        self._emit_event = emit

    def emit(self, record: logging.LogRecord) -> None:
        self._emit_event(Log(f"  {record.getMessage()}"))


@contextmanager
def notices(emit: Emit) -> Iterator[None]:
    """Forward preparation logs within the context."""
    logger, handler = logging.getLogger("llmtrack"), _Notices(emit)
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
