"""How long a worker may tell nothing before it is given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmtrack.spec.events import Progress
from llmtrack.spec.scenario import Scenario

STARTING, LOADING = "starting", "loading"
"""First words of the steps that are given a time of their own."""


@dataclass(frozen=True)
class Patience:
    """Seconds without a sign of life, by what is being done.

    Attributes:
        time_limit: for loading and for each step of a measurement; 0: those below.
        starting: until a worker process has imported what it needs and knows its machine.
        loading: a model may have to be fetched, exported and quantized first.
        step: of a measurement: a repeat, a batch, a step of training.
        room: times `max_seconds` that a step is given besides.
        ending: to keep a checkpoint when a signal has come.
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
            at: what is being done.
            scenarios: what is being measured.
        """
        if at.step.startswith(STARTING):
            return self.starting
        if self.time_limit > 0:
            return self.time_limit
        if at.step.startswith(LOADING):
            return self.loading
        return self.step + self.room * max((each.repeat.max_seconds for each in scenarios), default=0.0)
