"""What a program gives where texts are meant: as they are meant, or a line that says what is wrong with them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from llmtrack.errors import UsageError
from llmtrack.host.words import cut

_SHOWN = 60


def one_text(name: str, value: object) -> str:
    """Return a text, or a path as one.

    Args:
        name: what it is, in words.
        value: what was given.

    Raises:
        UsageError: it is none, such as a list of several, or nothing.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise UsageError(f"{name} {cut(repr(value), _SHOWN, '...')} is a {type(value).__name__}: give a text")
    return text


def text_or_none(name: str, value: object) -> str | None:
    """Return a text, or None where nothing is given; raises as `one_text`."""
    return None if value is None else one_text(name, value)


def texts(name: str, values: object) -> tuple[str, ...]:
    """Return texts; a text alone is one, and not as many as it has characters.

    Raises:
        UsageError: one of them, or all of it, is none.
    """
    if isinstance(values, (str, os.PathLike)) or not isinstance(values, Iterable):
        return (one_text(name, values),)
    return tuple(one_text(name, each) for each in values)
