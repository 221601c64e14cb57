"""What a worker tells while it measures: plain data that crosses a process border as JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from llmtrack.spec.outcome import Failure, Measurement, StepValues
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import Scalar, from_json, to_json


@dataclass(frozen=True)
class Log:
    """A line for a person: which model was loaded, how a batch was scored."""

    text: str


@dataclass(frozen=True)
class Warn:
    """A finding in words that concerns every scenario of a variant."""

    text: str


@dataclass(frozen=True)
class Progress:
    """A step of a scenario is about to be done.

    Attributes:
        scenario: name of the scenario that is being measured.
        step: what is being done, such as `repeat 3` or `batch 2/7`.
        done: share of the scenario that is done (0 to 1), where that is known.
    """

    scenario: str
    step: str
    done: float | None = None


@dataclass(frozen=True)
class Begun:
    """Something begins, or goes on, whose steps are told as they come; an outcome with the same key ends it.

    Attributes:
        scenario: what was asked.
        run_key: identity of its run: the same when it was interrupted and goes on.
        facts: what is really used, as in `Measurement`.
        tags: provenance, as in `Measurement`.
        started_at: seconds since the epoch, of the first beginning.
        resumed: whether it goes on from an earlier time.
    """

    scenario: Scenario
    run_key: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    started_at: float = 0.0
    resumed: bool = False


@dataclass(frozen=True)
class Steps:
    """A bunch of steps of what `Begun` told of."""

    run_key: str
    rows: tuple[StepValues, ...]


@dataclass(frozen=True)
class SoFar:
    """What counts of a scenario is measured; an outcome with what is measured beside it follows.

    If none does, because that ends the process or never ends, this is the outcome.

    Attributes:
        measurement: what there is already.
    """

    measurement: Measurement


Event = Union[Log, Warn, Progress, Begun, Steps, SoFar, Measurement, Failure]  # noqa: UP007 - evaluated on Python 3.10
Emit = Callable[[Event], None]

_KINDS = {kind.__name__: kind for kind in (Log, Warn, Progress, Begun, Steps, SoFar, Measurement, Failure)}


def event_to_json(event: Event) -> Any:
    """Turn an event into JSON-ready data."""
    return {"kind": type(event).__name__, "data": to_json(event)}


def event_from_json(data: Any) -> Event:
    """Rebuild an event from `event_to_json`'s result."""
    event: Event = from_json(data["data"], _KINDS[data["kind"]])
    return event
