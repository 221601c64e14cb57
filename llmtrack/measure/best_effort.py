"""Additional measurements of a result: if one fails, the result stands and a warning names what is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from llmtrack.errors import in_words

T = TypeVar("T")
Default = TypeVar("Default")


class BestEffort:
    """Collects additional measurements of one result; none of them can fail it."""

    def __init__(self) -> None:
        self._missing: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """One warning per missing measurement."""
        return tuple(f"{name} is missing: {reason}" for name, reason in self._missing.items())

    def get(self, name: str, measure: Callable[[], T], default: Default) -> T | Default:
        """Return the result of `measure`, or `default` if it fails or failed before.

        Args:
            name: for the warning, such as `the copy bandwidth`.
        """
        if name in self._missing:
            return default
        try:
            return measure()
        except Exception as error:
            self._missing[name] = in_words(error)
            return default
