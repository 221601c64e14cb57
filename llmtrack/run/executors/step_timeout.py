"""Keep a limit of time in the process that measures: between calls, since a call that hangs there cannot be ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmtrack.errors import ScenarioError
from llmtrack.host.words import clock_text
from llmtrack.spec.events import Event, Progress
from llmtrack.spec.outcome import Measurement


class StepTimeout:
    """Passes events on, and ends a scenario before its next call where one took longer than it may.

    Args:
        emit: is told every event. What it does takes none of the time.
        seconds: how long a scenario may tell nothing.
        clock: returns seconds; monotonic.
        first: name of the scenario that what comes before the first call counts for.
    """

    def __init__(self, emit: Callable[[Event], None], seconds: float, clock: Callable[[], float], first: str) -> None:
        self._emit, self._seconds, self._clock = emit, seconds, clock
        self._at = Progress(first, "loading")
        self._late: dict[str, str] = {}
        self._since = clock()

    def __call__(self, event: Event) -> None:
        """Take an event.

        Raises:
            ScenarioError: a call of the scenario that the event would go on with took too long (`timeout`).
        """
        took = self._clock() - self._since
        if took > self._seconds:
            self._late[self._at.scenario] = (
                f"{self._at.step} took {clock_text(took)}, and time_limit is {clock_text(self._seconds)}"
            )
        try:
            if isinstance(event, Progress):
                self._at = event
                if late := self._late.pop(event.scenario, ""):
                    raise ScenarioError(f"{late}: find out what takes so long, or raise time_limit", kind="timeout")
            elif isinstance(event, Measurement) and (late := self._late.pop(event.scenario.name, "")):
                # Nothing is left to be ended, so what is measured is kept.
                event = replace(event, warnings=(*event.warnings, late))
            self._emit(event)
        finally:
            self._since = self._clock()
