"""Hold a main measurement until its side measurements are complete."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmtrack.spec.events import Event, SoFar
from llmtrack.spec.outcome import Failure, Measurement


class PartialResults:
    """Forwards events, but holds each `SoFar` until the outcome of its scenario arrives or is lost.

    Args:
        emit: receives the other events, and held measurements whose outcome is lost.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._held: dict[str, Measurement] = {}

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if isinstance(event, SoFar):
            self._held[event.measurement.scenario.name] = event.measurement
            return
        if isinstance(event, (Measurement, Failure)):
            self._held.pop(event.scenario.name, None)
        self._emit(event)

    def emit_without(self, name: str, reason: str) -> bool:
        """Emit a scenario's held measurement with a warning about what is missing; return whether there was one."""
        held = self._held.pop(name, None)
        if held is None:
            return False
        missing = f"what is measured after it is missing: {reason}"
        self._emit(replace(held, warnings=(*held.warnings, missing)))
        return True

    def emit_all_without(self, reason: str) -> None:
        """Emit all held measurements."""
        for name in tuple(self._held):
            self.emit_without(name, reason)
