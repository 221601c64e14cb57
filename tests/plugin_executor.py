"""An executor of another package: here one that measures in this process, and says so."""

from __future__ import annotations

from collections.abc import Mapping

from llmtrack.run.executors import InlineExecutor


class Elsewhere(InlineExecutor):
    """Where another executor would go to a queue, a cluster or a phone."""

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine that measures."""
        return {**super().machine(), "elsewhere": "yes"}


def make(settings) -> Elsewhere:
    """Return the executor of these settings."""
    return Elsewhere(time_limit=settings.time_limit)
