"""What a worker tells while it measures: plain data that crosses a process border as JSON lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from llmtrack.scenario import Failure, Measurement, from_json, to_json


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


Event = Union[Log, Warn, Progress, Measurement, Failure]  # noqa: UP007 - evaluated on Python 3.10


def event_to_json(event: Event) -> Any:
    """Turn an event into JSON-ready data."""
    return {"kind": type(event).__name__, "data": to_json(event)}


def event_from_json(data: Any) -> Event:
    """Rebuild an event from `event_to_json`'s result."""
    kinds = {kind.__name__: kind for kind in (Log, Warn, Progress, Measurement, Failure)}
    event: Event = from_json(data["data"], kinds[data["kind"]])
    return event
