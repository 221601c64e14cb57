"""Full and abbreviated run ids, as printed and accepted everywhere."""

from __future__ import annotations

import re

from llmtrack.errors import UsageError
from llmtrack.tracking.read.direct import Known
from llmtrack.tracking.read.filters import Wanted
from llmtrack.tracking.read.source import Source

SHORT_ID = 8
"""Printed characters of an id."""

_WHOLE = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(rf"[0-9a-f]{{{SHORT_ID},32}}")
_STUDY = re.compile(r"\w+-\d{8}-\d{6}-[0-9a-f]{4}")
_NAMED = 5


def is_id(text: str) -> bool:
    """Return whether a text is a complete run id."""
    return bool(_WHOLE.fullmatch(text))


def may_be_id(text: str) -> bool:
    """Return whether a text is a run id or a sufficiently long prefix."""
    return bool(_ID.fullmatch(text))


def is_study_id(text: str) -> bool:
    """Return whether a text has the form of a study id: `precision-20261128-014301-3f2a`."""
    return bool(_STUDY.fullmatch(text))


def run_of_id(source: Source, text: str) -> Known | None:
    """Return the run with an id or id prefix, or None.

    Raises:
        UsageError: the prefix is ambiguous.
        TrackingError: the store cannot be read.
    """
    if not may_be_id(text):
        return None
    found = source.newest(Wanted(run_id=text), _NAMED)
    if len(found) > 1:
        raise UsageError(
            f"several runs begin with {text!r} ({', '.join(run.run_id for run in found)}): give more of the id"
        )
    return found[0] if found else None
