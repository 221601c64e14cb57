"""An executor of another package; this one measures in its own process."""

from __future__ import annotations

from collections.abc import Mapping

from llmtrack.run.executors import InlineExecutor


class Elsewhere(InlineExecutor):
    """A real one would use a queue, a cluster or a phone."""

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine that measures."""
        return {**super().machine(), "elsewhere": "yes"}


def make(settings) -> Elsewhere:
    """Return the executor of these settings."""
    return Elsewhere(time_limit=settings.time_limit)
