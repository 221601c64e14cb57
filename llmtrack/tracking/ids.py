"""What a run's id is, and how many of its characters are shown and taken for it."""

from __future__ import annotations

import re

SHORT_ID = 8

_WHOLE = re.compile(r"[0-9a-f]{32}")
_BEGINNING = re.compile(rf"[0-9a-f]{{{SHORT_ID},31}}")


def is_id(text: str) -> bool:
    """Return whether a text is the whole id of a run."""
    return bool(_WHOLE.fullmatch(text))


def begins_id(text: str) -> bool:
    """Return whether a text may be the beginning of a run's id, long enough to be taken for it."""
    return bool(_BEGINNING.fullmatch(text))
