"""Enforce a time limit within the measuring process, between calls, since a hanging call cannot be ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import clock_text
from llmtrack.spec.events import Event, Progress
from llmtrack.spec.outcome import Measurement


class StepTimeout:
    """Forwards events, and ends a scenario before its next call if the last one took too long.

    Args:
        emit: receives every event; its own time is not counted.
        seconds: maximum time between events.
        clock: monotonic clock in seconds.
        first: scenario that the time before the first call counts for.
    """

    def __init__(self, emit: Callable[[Event], None], seconds: float, clock: Callable[[], float], first: str) -> None:
        self._emit, self._seconds, self._clock = emit, seconds, clock
        self._at = Progress(first, "loading")
        self._late: dict[str, str] = {}
        self._since = clock()

    def __call__(self, event: Event) -> None:
        """Handle an event.

        Raises:
            ScenarioError: the previous call of its scenario took too long (`timeout`).
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
                # The scenario is complete: keep its result.
                event = replace(event, warnings=(*event.warnings, late))
            self._emit(event)
        finally:
            self._since = self._clock()
