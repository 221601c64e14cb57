"""Timeouts of a silent worker."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmtrack.spec.events import Progress
from llmtrack.spec.scenario import Scenario

STARTING, LOADING = "starting", "loading"
"""Step prefixes with their own timeout."""


@dataclass(frozen=True)
class Patience:
    """Seconds without a sign of life before a worker is given up, by phase.

    Attributes:
        time_limit: for loading and for each step of a measurement; 0 for the defaults below.
        starting: for a worker process to import its modules and describe its machine.
        loading: may include downloading, exporting and quantizing the model.
        step: of a measurement: a repeat, a batch, a training step.
        room: multiple of `max_seconds` added to a step.
        ending: to save a checkpoint after a signal.
    """

    time_limit: float = 0.0
    starting: float = 300.0
    loading: float = 3600.0
    step: float = 300.0
    room: float = 10.0
    ending: float = 120.0

    def seconds(self, at: Progress, scenarios: Iterable[Scenario]) -> float:
        """Return how long to wait for the next sign of life.

        Args:
            at: the current step.
            scenarios: what is being measured.
        """
        if at.step.startswith(STARTING):
            return self.starting
        if self.time_limit > 0:
            return self.time_limit
        if at.step.startswith(LOADING):
            return self.loading
        return self.step + self.room * max((each.repeat.max_seconds for each in scenarios), default=0.0)
