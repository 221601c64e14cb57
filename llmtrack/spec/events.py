"""Events that a worker emits while it measures: plain data sent between processes as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from llmtrack.spec.outcome import Failure, Measurement, Outcome, StepValues
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import Scalar, from_json, to_json


@dataclass(frozen=True)
class Log:
    """A line of log text: which model was loaded, how a batch was scored."""

    text: str


@dataclass(frozen=True)
class Warn:
    """A warning that applies to every scenario of a variant."""

    text: str


LOADING = "loading"
"""Beginning of a step that loads a model, which may take an hour in silence."""


@dataclass(frozen=True)
class Progress:
    """A step of a scenario is about to start.

    Attributes:
        step: such as `repeat 3` or `batch 2/7`.
        done: completed share of the scenario (0 to 1), or None if unknown.
    """

    scenario: str
    step: str
    done: float | None = None


@dataclass(frozen=True)
class Begun:
    """A run that reports its steps as they happen has started or resumed; an outcome with the same key ends it.

    Attributes:
        run_key: identity of the run; unchanged when an interrupted run resumes.
        started_at: seconds since the epoch, of the first start.
    """

    scenario: Scenario
    run_key: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    resumed: bool = False


@dataclass(frozen=True)
class Steps:
    """A batch of steps of a run announced by `Begun`."""

    run_key: str
    rows: tuple[StepValues, ...]


@dataclass(frozen=True)
class SoFar:
    """The main part of a measurement is complete; an outcome that adds the side measurements follows.

    If none follows, because the process crashed or hung, this is the outcome.
    """

    measurement: Measurement


Event = Union[Log, Warn, Progress, Begun, Steps, SoFar, Measurement, Failure]  # noqa: UP007 - evaluated on Python 3.10
Emit = Callable[[Event], None]


class Collected:
    """Collect the outcomes among events, in order, and forward all others."""

    def __init__(self, forward: Emit) -> None:
        self.outcomes: list[Outcome] = []
        self._forward = forward

    def __call__(self, event: Event) -> None:
        """Collect an outcome, or forward any other event."""
        if isinstance(event, (Measurement, Failure)):
            self.outcomes.append(event)
        else:
            self._forward(event)


_KINDS = {kind.__name__: kind for kind in (Log, Warn, Progress, Begun, Steps, SoFar, Measurement, Failure)}


def event_to_json(event: Event) -> Any:
    """Convert an event to JSON-ready data; `event_from_json` rebuilds it."""
    return {"kind": type(event).__name__, "data": to_json(event)}


def event_from_json(data: Any) -> Event:
    """Rebuild an event."""
    event: Event = from_json(data["data"], _KINDS[data["kind"]])
    return event
