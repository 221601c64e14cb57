"""Validate text arguments; raise a one-line UsageError."""

from __future__ import annotations

import os
from collections.abc import Iterable

from llmtrack.errors import UsageError
from llmtrack.host.formatting import cut

_SHOWN = 60


def one_text(name: str, value: object) -> str:
    """Return a text or path as text.

    Args:
        name: name of the argument for the message.

    Raises:
        UsageError: it is neither.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise UsageError(f"{name} {cut(repr(value), _SHOWN, '...')} is a {type(value).__name__}: give a text")
    return text


def text_or_none(name: str, value: object) -> str | None:
    """Return a text, or None for None; raises as `one_text`."""
    return None if value is None else one_text(name, value)


def texts(name: str, values: object) -> tuple[str, ...]:
    """Return a tuple of texts; a single text counts as one.

    Raises:
        UsageError: a value is not a text.
    """
    if isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable):
        return (one_text(name, values),)
    return tuple(one_text(name, each) for each in values)
