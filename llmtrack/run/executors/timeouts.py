"""Time limits: patience with a silent worker, and a limit per step when measuring in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import clock_text
from llmtrack.spec.events import LOADING, Event, Progress
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario

STARTING = "starting"
"""Beginning of the step before `LOADING`; both have a timeout of their own."""


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

    def seconds(self, step: Progress, scenarios: Iterable[Scenario]) -> float:
        """Return how long to wait for the next sign of life in a step, given what is being measured."""
        if step.step.startswith(STARTING):
            return self.starting
        if self.time_limit > 0:
            return self.time_limit
        if step.step.startswith(LOADING):
            return self.loading
        return self.step + self.room * max((scenario.repeat.max_seconds for scenario in scenarios), default=0.0)


class StepTimeout:
    """Forwards events, and ends a scenario before its next call if the last one took too long.

    Args:
        emit: receives every event; its own time is not counted.
        first: scenario that the time before the first call counts for.
    """

    def __init__(self, emit: Callable[[Event], None], seconds: float, clock: Callable[[], float], first: str) -> None:
        self._emit, self._seconds, self._clock = emit, seconds, clock
        self._at = Progress(first, LOADING)
        self._overruns: dict[str, str] = {}
        self._since = clock()

    def __call__(self, event: Event) -> None:
        """Handle an event.

        Raises:
            ScenarioError: the previous call of its scenario took too long (`timeout`).
        """
        seconds = self._clock() - self._since
        if seconds > self._seconds:
            self._overruns[self._at.scenario] = (
                f"{self._at.step} took {clock_text(seconds)}, and time_limit is {clock_text(self._seconds)}"
            )
        try:
            if isinstance(event, Progress):
                self._at = event
                if overrun := self._overruns.pop(event.scenario, ""):
                    raise ScenarioError(f"{overrun}: find out what takes so long, or raise time_limit", kind="timeout")
            elif isinstance(event, Measurement) and (overrun := self._overruns.pop(event.scenario.name, "")):
                # The scenario is complete: keep its result.
                event = replace(event, warnings=(*event.warnings, overrun))
            self._emit(event)
        finally:
            self._since = self._clock()
