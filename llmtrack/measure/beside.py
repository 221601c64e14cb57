"""Side measurements of a result: if one fails, the result stands and a warning says what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llmtrack.errors import in_words

T = TypeVar("T")
Without = TypeVar("Without")


class Beside:
    """Collects side measurements of one result; none of them can fail it."""

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning per missing side measurement."""
        return tuple(f"{what} is missing: {reason}" for what, reason in self._missing.items())

    def get(self, what: str, measure: Callable[[], T], without: Without) -> T | Without:
        """Return the result of `measure`, or `without` if it fails or failed before.

        Args:
            what: name for the warning, such as `the copy bandwidth`.
        """
        if what in self._missing:
            return without
        try:
            return measure()
        except Exception as error:
            self._missing[what] = in_words(error)
            return without
