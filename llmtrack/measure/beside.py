"""What is measured beside a result: where it cannot be had, the result stands without it, and a warning says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llmtrack.errors import in_words

T = TypeVar("T")
Without = TypeVar("Without")


class Beside:
    """Takes the side measurements of one result, none of which may decide over it.

    Attributes:
        warnings: what is missing and why, each said once.
    """

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each thing that is missing."""
        return tuple(f"{what} is missing: {reason}" for what, reason in self._missing.items())

    def get(self, what: str, measure: Callable[[], T], without: Without) -> T | Without:
        """Return what `measure` returns, or `without` where it fails or the same thing was missing before.

        Args:
            what: its name in the warning, such as `the copy bandwidth`.
            measure: measures it.
            without: stands for what cannot be had.
        """
        if what in self._missing:
            return without
        try:
            return measure()
        except Exception as error:
            self._missing[what] = in_words(error)
            return without
