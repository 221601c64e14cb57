"""Keep what is measured of a scenario while something beside it is still to be measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmtrack.spec.events import Event, SoFar
from llmtrack.spec.outcome import Failure, Measurement


class PartialResults:
    """Passes events on, and holds each `SoFar` back until its scenario's outcome comes, or does not.

    Args:
        emit: is told every other event, and what is held where its outcome does not come.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._held: dict[str, Measurement] = {}

    def __call__(self, event: Event) -> None:
        """Take an event."""
        if isinstance(event, SoFar):
            self._held[event.measurement.scenario.name] = event.measurement
            return
        if isinstance(event, (Measurement, Failure)):
            self._held.pop(event.scenario.name, None)
        self._emit(event)

    def emit_without(self, name: str, reason: str) -> bool:
        """Emit what is held of a scenario, with the reason why what belongs beside it is missing; return whether any is."""
        held = self._held.pop(name, None)
        if held is None:
            return False
        missing = f"what is measured after it is missing: {reason}"
        self._emit(replace(held, warnings=(*held.warnings, missing)))
        return True

    def emit_all_without(self, reason: str) -> None:
        """Emit all that is held."""
        for name in tuple(self._held):
            self.emit_without(name, reason)
