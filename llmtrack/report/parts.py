"""A report is made part by part: one that fails is named, and costs neither the others nor what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from llmtrack.tracking.store_errors import one_line


class Parts:
    """The parts of a report.

    Attributes:
        problems: what failed and why, one line for each part.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Make a part; an error ends it alone."""
        try:
            yield
        except Exception as error:
            self.problems.append(f"{name}: {type(error).__name__}: {one_line(error)}")
