"""The scenarios of a group on a cluster: what is unfinished, retried and lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from llmtrack.errors import LlmtrackError
from llmtrack.host.formatting import plural
from llmtrack.run.executors.executor import BESIDE, PartialResults
from llmtrack.run.executors.ray.files import Parcel, home_of, note_home, with_files
from llmtrack.run.executors.ray.kinds import Node
from llmtrack.run.executors.timeouts import STARTING
from llmtrack.spec.events import LOADING, Begun, Emit, Log, Progress, SoFar, event_from_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import to_json
from llmtrack.tracking.environment import environment_id

RETRIES = 2
"""Consecutive retries of a group lost with its node without progress in between."""

WAITING = "waiting for a free node"
"""Step of a group that no node is free for."""

Located = TypeVar("Located", bound=Measurement | Failure | Begun)


class Group:
    """The unfinished scenarios of a group, and the history of its attempts.

    Args:
        fetch: fetch a path from a node, by the node's id.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        emit: Emit,
        nodes: Mapping[str, Node],
        fetch: Callable[[str, str], Parcel],
    ) -> None:
        self.waiting = {scenario.name: scenario for scenario in scenarios}
        self._requested = dict(self.waiting)
        self.results = PartialResults(emit)
        self.lost_on = ""
        self.home = next(filter(None, (home_of(scenario.task) for scenario in scenarios)), "")
        self._emit = emit
        self._nodes = nodes
        self._fetch = fetch
        self._losses: list[str] = []
        self._begun_at = time.time()
        self._node = ""
        self._tags: dict[str, str] = {}
        self._at = Progress("", STARTING)

    def begin(self) -> list[Any]:
        """Start an attempt; return its scenarios as JSON."""
        self._begun_at, self._node, self._tags = time.time(), "", {}
        self._at = Progress(next(iter(self.waiting)), STARTING)
        return [to_json(scenario) for scenario in self.waiting.values()]

    def wait(self) -> None:
        """Report once that no node is free."""
        if self._at.step != WAITING:
            self._at = Progress(self._at.scenario, WAITING)
            self._emit(self._at)

    def take(self, letter: Mapping[str, Any]) -> bool:
        """Handle a message; return whether all is measured.

        Raises:
            LostGroupError: the task is lost.
            LlmtrackError: the cluster is lost.
        """
        if "gone" in letter:
            raise LlmtrackError(f"the Ray cluster is lost: {letter['gone']}")
        if "lost" in letter:
            raise LostGroupError(letter["lost"], final=letter["final"])
        if "where" in letter:
            self._node = letter["node"]
            facts = letter["where"]
            self._tags = {
                **facts,
                "node": self._where(),
                "llmtrack.environment_id": environment_id(facts),
            }
            self._at = Progress(self._at.scenario, LOADING)
        if "event" in letter:
            self._take_event(letter["event"])
        if "ended" in letter and self.waiting:
            raise LostGroupError("its task ended without reporting all outcomes")
        return "ended" in letter

    def lose(self, loss: LostGroupError) -> None:
        """Handle a lost attempt: fail what has no retries left; the rest is retried."""
        self._losses.append(f"{loss} on {self._where()}" if self._node else str(loss))
        self.lost_on = self._node
        if not loss.final and len(self._losses) <= RETRIES:
            self._emit(Log(f"  {self._at.scenario}: {self._losses[-1]}; what is unfinished is tried again elsewhere"))
            return
        reason = "; ".join(dict.fromkeys(self._losses))
        if len(self._losses) > 1:
            reason = f"lost {plural(len(self._losses), 'time')} in a row: {reason}"
        # A loss while loading would repeat for each scenario.
        current = self._at.scenario if self._at.scenario in self.waiting else next(iter(self.waiting))
        begun = self._node and not self._at.step.startswith((STARTING, LOADING, WAITING))
        for name in [current] if begun else list(self.waiting):
            lost = self.waiting.pop(name)
            if not self.results.emit_without(name, reason):
                started_at, ended_at = self._begun_at, time.time()
                self._emit(Failure(lost, "killed", reason, tags=self._tags, started_at=started_at, ended_at=ended_at))
        self._losses.clear()

    def _take_event(self, data: Any) -> None:
        event = event_from_json(data)
        if isinstance(event, (Measurement, Failure)):
            if self.waiting.pop(event.scenario.name, None) is None:
                return
            self._losses.clear()
        if isinstance(event, Progress):
            self._at = event
        elif isinstance(event, SoFar):
            self._at = Progress(event.measurement.scenario.name, BESIDE)
            event = SoFar(self._placed(event.measurement))
        elif isinstance(event, (Measurement, Failure, Begun)):
            event = self._placed(event)
        if isinstance(event, Begun) and self._node in self._nodes:
            note_home(event.scenario.task, self._nodes[self._node])
        if isinstance(event, Measurement):
            event = with_files(event, self._where(), partial(self._fetch, self._node))
        if isinstance(event, Failure) and home_of(event.scenario.task):
            event = replace(event, reason=f"{event.reason} (on {self._where()})")
        self.results(event)

    def _where(self) -> str:
        return self._nodes[self._node].name if self._node in self._nodes else self._node

    def _placed(self, outcome: Located) -> Located:
        """Restore the requested scenario, with local file names, and add the tags of the measuring node."""
        return replace(outcome, scenario=self._requested[outcome.scenario.name], tags={**outcome.tags, **self._tags})


class LostGroupError(Exception):
    """An attempt is lost.

    Attributes:
        final: whether a retry would fail, too.
    """

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
