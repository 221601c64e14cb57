"""Build a report part by part: a failing part is recorded without affecting the others or the measurements."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmtrack.tracking.store_errors import one_line


class Parts:
    """The parts of a report.

    Attributes:
        problems: failed parts with the reason, one line each.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Build a part; record an error instead of raising it."""
        try:
            yield
        except Exception as error:
            self.problems.append(f"{name}: {type(error).__name__}: {one_line(error)}")
