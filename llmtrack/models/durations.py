"""Record how long slow steps took on this machine, to announce it the next time."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmtrack.host.formatting import clock_text
from llmtrack.models.cache import cache_root, write_note
from llmtrack.spec.serialization import digest

WORTH_SECONDS = 3.0
"""Shorter durations are not announced."""

logger = logging.getLogger(__name__)


def folder() -> Path:
    """Return the folder of the records."""
    return cache_root() / "durations"


@contextmanager
def timed_step(step: str, model: str) -> Iterator[None]:
    """Announce a cached build step with its last duration, and record the new one."""
    duration = last_duration_text(step, model)
    # Log it for scripts, too: nothing else is printed until it is done.
    logger.warning("%s (once, then cached%s) ...", step, f"; {duration}" if duration else "")
    start = time.perf_counter()
    yield
    seconds = time.perf_counter() - start
    record_duration(step, seconds, model)
    logger.info("%s took %s", step, clock_text(seconds))


def record_duration(step: str, seconds: float, model: str = "") -> None:
    """Record the duration of a step, named by its description or digest; failing to write is ignored."""
    write_note(_file(step), json.dumps({"what": step, "of": model, "seconds": round(seconds, 3)}))


def last_seconds(step: str) -> float | None:
    """Return the last duration of a step, or None."""
    return None if (record := _read(step)) is None else record[0]


def last_duration_text(step: str, model: str = "") -> str:
    """Return `last time 0:34`, or `last time 0:34, for OTHER` for another model; empty if short or unknown."""
    seconds, other = _read(step) or (0.0, "")
    if seconds < WORTH_SECONDS:
        return ""
    return f"last time {clock_text(seconds)}{f', for {other}' if other != model else ''}"


def _read(step: str) -> tuple[float, str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(_file(step).read_text(encoding="utf-8"))
        return float(record["seconds"]), str(record["of"])
    return None


def _file(step: str) -> Path:
    return folder() / f"{digest(step)}.json"
