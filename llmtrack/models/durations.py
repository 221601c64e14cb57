"""How long what takes long took the last time on this machine: small notes in the cache, read when it begins again."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from llmtrack.host.words import clock_text
from llmtrack.models.cache import cache_root, keep_note
from llmtrack.spec.serialization import digest

WORTH_SECONDS = 3.0
"""What takes less needs no word about how long it takes."""

logger = logging.getLogger(__name__)


def folder() -> Path:
    """Return where the notes are."""
    return cache_root() / "durations"


def note(what: str, seconds: float, of: str = "") -> None:
    """Keep how long something took; a cache that cannot be written costs nothing but the note.

    Args:
        what: what was done, in words or by a digest.
        seconds: how long it took.
        of: the model that it was done to.
    """
    keep_note(_file(what), json.dumps({"what": what, "of": of, "seconds": round(seconds, 3)}))


def seconds_of(what: str) -> float | None:
    """Return how long something took the last time, or None."""
    return None if (known := _known(what)) is None else known[0]


def last_time(what: str, of: str = "") -> str:
    """Return `0:34 the last time`, or `0:34 for OTHER the last time` of another model; empty of what was quick or is not known."""
    seconds, other = _known(what) or (0.0, "")
    if seconds < WORTH_SECONDS:
        return ""
    return f"{clock_text(seconds)}{f' for {other}' if other != of else ''} the last time"


@contextmanager
def making(what: str, of: str) -> Iterator[None]:
    """Say that something is made which the cache keeps, and how long such a thing took the last time; keep how long it takes.

    Args:
        what: what is done, in words.
        of: the model that it is done to.
    """
    known = last_time(what, of)
    # A script hears of it, too: nothing else is told until it is done.
    logger.warning("%s (once, then kept in the cache%s) ...", what, f"; {known}" if known else "")
    began = time.perf_counter()
    yield
    seconds = time.perf_counter() - began
    note(what, seconds, of)
    logger.info("%s took %s", what, clock_text(seconds))


def _known(what: str) -> tuple[float, str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(_file(what).read_text(encoding="utf-8"))
        return float(kept["seconds"]), str(kept["of"])
    return None


def _file(what: str) -> Path:
    return folder() / f"{digest(what)}.json"
