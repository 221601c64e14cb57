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


def record_duration(what: str, seconds: float, of: str = "") -> None:
    """Record a duration; failing to write is ignored.

    Args:
        what: description or digest of the step.
        of: the model.
    """
    write_note(_file(what), json.dumps({"what": what, "of": of, "seconds": round(seconds, 3)}))


def last_seconds(what: str) -> float | None:
    """Return the last duration of a step, or None."""
    return None if (known := _known(what)) is None else known[0]


def last_duration_text(what: str, of: str = "") -> str:
    """Return `0:34 the last time`, or `0:34 for OTHER the last time` for another model; empty if short or unknown."""
    seconds, other = _known(what) or (0.0, "")
    if seconds < WORTH_SECONDS:
        return ""
    return f"{clock_text(seconds)}{f' for {other}' if other != of else ''} the last time"


@contextmanager
def timed_step(what: str, of: str) -> Iterator[None]:
    """Announce a cached build step with its last duration, and record the new one.

    Args:
        what: description of the step.
        of: the model.
    """
    known = last_duration_text(what, of)
    # Log it for scripts, too: nothing else is printed until it is done.
    logger.warning("%s (once, then kept in the cache%s) ...", what, f"; {known}" if known else "")
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    record_duration(what, seconds, of)
    logger.info("%s took %s", what, clock_text(seconds))


def _known(what: str) -> tuple[float, str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_file(what).read_text(encoding="utf-8"))
        return float(kept["seconds"]), str(kept["of"])
    return None


def _file(what: str) -> Path:
    return folder() / f"{digest(what)}.json"
