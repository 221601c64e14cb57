"""Measures on the nodes of a Ray cluster that are of one kind, each group on a node of its own, several at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from llmtrack.errors import LlmtrackError
from llmtrack.host.words import clock_text, plural
from llmtrack.run.executors.crew import Crew
from llmtrack.run.executors.inline import BESIDE, INTERRUPTED
from llmtrack.run.executors.partial_results import PartialResults
from llmtrack.run.executors.patience import LOADING, STARTING, Patience
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.connect import Cluster, LostAnswerError, RayTask
from llmtrack.run.executors.ray.files import Parcel, brought, home_of, named_files, note_home, parcel_of
from llmtrack.run.executors.ray.kinds import Kind, Node, room_on
from llmtrack.spec.events import Begun, Emit, Log, Progress, SoFar, event_from_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import to_json
from llmtrack.tracking.environment import environment_id

RETRIES = 2
"""How often in a row a group is tried again that was lost with its node before a further one of its scenarios had ended."""

SILENT_SECONDS = 300.0
"""After so long without a letter a task is given up: it writes every few seconds, however long a measurement takes."""

WAITING = "waiting for a free node"

_LOOK_SECONDS = 2.0


Told = TypeVar("Told", bound=Measurement | Failure | Begun)


class Stopped(BaseException):
    """The executor was told to stop while it measured."""


class RayExecutor:
    """Measures each group as a task on a node of a kind; any thread may call `run`.

    On the node a process executor does the work, with its isolation and limits of time. A group whose node or task is
    lost goes on with what is unfinished on another node.

    Args:
        cluster: where.
        kind: on which of its nodes.
        patience: how long a worker may tell nothing.
        alone: whether a measurement has its node to itself.
    """

    at_once = 64
    """So many groups are handed to Ray at a time, which measures as many as there are free nodes."""

    def __init__(self, cluster: Cluster, kind: Kind, patience: Patience, alone: bool) -> None:
        self.kind = kind
        self.where = kind.name
        self._cluster = cluster
        self._patience = patience
        self._alone = alone
        self._machine: dict[str, str] | None = None
        self._by_id = {each.id: each for each in kind.nodes}
        self._sent: dict[str, Parcel] = {}
        self._stopping = threading.Event()
        self._running: dict[str, RayTask] = {}
        self._lock = threading.Lock()
        self._one_crew = threading.Lock()

    def begin(self) -> None:
        """Have every node start a worker, and wait for none: its imports take seconds, in which the study is opened."""
        for each in self._by_id:
            self._cluster.call(node.describe, self.kind.needs, [each], self._patience, self._alone, self._facts)

    def machine(self) -> Mapping[str, str]:
        """Return facts about the machine and the installation that measure, as a worker on a node of the kind sees them."""
        if self._machine is None:
            self._machine = dict(self._ask(node.describe, self._facts))
        return self._machine

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """Refuse what no run can mend, before a study begins, as a worker on a node sees it."""
        self._ask(node.check, [to_json(scenario) for scenario in scenarios], self._parcels(scenarios))

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """Return the tags that a run of a scenario would have of its model, as a worker on a node finds them."""
        return dict(self._ask(node.identify, to_json(scenario), self._parcels([scenario])))

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant on a node that is free.

        Raises:
            Stopped: `stop` was called; what was measured is emitted.
        """
        group = _Group(scenarios, emit, self._by_id, self._fetch)
        try:
            while group.waiting:
                try:
                    self._attempt(group)
                except _LostError as loss:
                    group.lose(loss)
        except BaseException:
            group.kept.emit_all_without(INTERRUPTED)
            raise

    @contextmanager
    def crew(self, workers: int | None) -> Iterator[Crew]:
        """Open a crew: each worker is a task of Ray's, and what is lost with its node goes on elsewhere, as in `run`.

        Args:
            workers: how many; None: as many as there is room for at once.
        """
        # Two at once would have half of the nodes each, and neither would know.
        with self._one_crew:
            room = max(1, room_on(self.kind, self._cluster.alive()))
            yield Crew((self.run,) * min(workers or room, room), self.stop, all_at_once=True)

    def stop(self) -> None:
        """Have all that is measured end soon; what is there already, and can be taken up again later, is kept."""
        with self._lock:
            self._stopping.set()
            running = list(self._running.values())
        for task in running:
            self._cluster.interrupt(task)

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()

    @property
    def _facts(self) -> dict[str, str]:
        """What only the cluster knows of nodes of this kind."""
        label = self.kind.nodes[0].facts.get("node_kind")
        return {"node_kind": label} if label else {}

    def _parcels(self, scenarios: Sequence[Scenario]) -> list[Parcel]:
        """Return the files of this machine that scenarios name; each is sent once, however many nodes want it."""
        files = named_files(scenarios)
        for written, path in files.items():
            if written not in self._sent:
                self._sent[written] = parcel_of(written, path, self._cluster.send)
        return [self._sent[written] for written in files]

    def _ask(self, function: Any, *args: Any) -> Any:
        """Return what a function returns on some node of the kind; of one that is lost meanwhile, another is asked.

        Raises:
            LlmtrackError: what the function raised, or why nobody answers.
        """
        lost: LostAnswerError | None = None
        for _ in range(1 + RETRIES):
            nodes = tuple(self._living() or self._by_id)
            ref = self._cluster.call(function, self.kind.needs, nodes, self._patience, self._alone, *args)
            try:
                return self._cluster.answer(ref)
            except LostAnswerError as error:
                lost = error
        raise LlmtrackError(f"no node of {self.kind.name} answers: {lost}") from lost

    def _attempt(self, group: _Group) -> None:
        """Have a node measure what is waiting, and take off what has ended, until it is done.

        Raises:
            _LostError: the node or the task is lost.
        """
        nodes = self._nodes(group)
        task = self._start(nodes, group)
        try:
            self._follow(task, nodes, group)
        except (_LostError, LlmtrackError):
            raise
        except BaseException:
            self._end_in_order(task, group)
            raise
        finally:
            with self._lock:
                self._running.pop(task.key, None)
            self._cluster.end(task)

    def _nodes(self, group: _Group) -> list[str]:
        """Return the nodes of the kind that live: the one with the group's checkpoints, or those that it was not lost on, if any."""
        alive = self._living()
        if not alive:
            raise _LostError(f"no node of its kind ({self.kind.name}) is left", final=True)
        if group.home:
            at_home = [each for each in alive if self._by_id[each].place == group.home]
            if not at_home:
                raise _LostError(
                    f"its checkpoints are on {group.home}, which is not among the nodes: start it there again, or train "
                    "anew with resume=false",
                    final=True,
                )
            return at_home
        return [each for each in alive if each != group.lost_on] or alive

    def _fetch(self, node_id: str, path: str) -> Parcel:
        """Return what a worker wrote under a path on a node.

        Raises:
            LlmtrackError: the node or the file is gone.
        """
        parcel: Parcel = self._cluster.answer(self._cluster.call(node.fetch, {}, [node_id], path))
        return parcel

    def _living(self) -> list[str]:
        """Return the nodes of the kind that live."""
        alive = self._cluster.alive()
        return [each for each in self._by_id if each in alive]

    def _start(self, nodes: Sequence[str], group: _Group) -> RayTask:
        with self._lock:
            if self._stopping.is_set():
                raise Stopped
            parcels = self._parcels(tuple(group.waiting.values()))
            task = self._cluster.start(
                self.kind.needs, nodes, self._patience, self._alone, self._facts, group.begin(), parcels
            )
            self._running[task.key] = task
            return task

    def _follow(self, task: RayTask, nodes: Sequence[str], group: _Group) -> None:
        heard = 0.0
        while True:
            try:
                letter = task.letters.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if heard and time.monotonic() - heard > SILENT_SECONDS:
                    raise _LostError(f"its task told nothing for {clock_text(SILENT_SECONDS)}") from None
                if not heard and not self._cluster.alive().intersection(nodes):
                    raise _LostError("the nodes that it waited for are gone") from None
                if not heard:
                    group.wait()
                letter = {}
            else:
                heard = time.monotonic()
            if group.take(letter):
                return
            if self._stopping.is_set():
                raise Stopped

    def _end_in_order(self, task: RayTask, group: _Group) -> None:
        """Interrupt a task, and pass on what it tells until it has ended."""
        self._cluster.interrupt(task)
        until = time.monotonic() + self._patience.ending
        with contextlib.suppress(queue.Empty, _LostError, LlmtrackError):
            while not group.take(task.letters.get(timeout=max(0.0, until - time.monotonic()))):
                pass


class _Group:
    """What is still to be measured of a group, and what became of its attempts.

    Args:
        scenarios: of one variant.
        emit: is told what happens.
        nodes: by their ids.
        fetch: returns what is on a node, by its id, under a path.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        emit: Emit,
        nodes: Mapping[str, Node],
        fetch: Callable[[str, str], Parcel],
    ) -> None:
        self.waiting = {scenario.name: scenario for scenario in scenarios}
        self._asked = dict(self.waiting)
        self.kept = PartialResults(emit)
        self.lost_on = ""
        self.home = next(filter(None, (home_of(each.task) for each in scenarios)), "")
        self._emit = emit
        self._nodes = nodes
        self._fetch = fetch
        self._losses: list[str] = []
        self._begun_at = time.time()
        self._node = ""
        self._tags: dict[str, str] = {}
        self._at = Progress("", STARTING)

    def begin(self) -> list[Any]:
        """Return what an attempt is to measure."""
        self._begun_at, self._node, self._tags = time.time(), "", {}
        self._at = Progress(next(iter(self.waiting)), STARTING)
        return [to_json(scenario) for scenario in self.waiting.values()]

    def wait(self) -> None:
        """Say once that no node is free."""
        if self._at.step != WAITING:
            self._at = Progress(self._at.scenario, WAITING)
            self._emit(self._at)

    def take(self, letter: Mapping[str, Any]) -> bool:
        """Take a letter; return whether all is measured.

        Raises:
            _LostError: it says that the task is lost.
            LlmtrackError: it says that the cluster is.
        """
        if "gone" in letter:
            raise LlmtrackError(f"the Ray cluster is lost: {letter['gone']}")
        if "lost" in letter:
            raise _LostError(letter["lost"], final=letter["final"])
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
            self._tell(letter["event"])
        if "ended" in letter and self.waiting:
            raise _LostError("its task ended without telling of all of it")
        return "ended" in letter

    def lose(self, loss: _LostError) -> None:
        """Take off what is lost for good with an attempt, if anything is; the rest is tried again."""
        self._losses.append(f"{loss} on {self._where()}" if self._node else str(loss))
        self.lost_on = self._node
        if not loss.final and len(self._losses) <= RETRIES:
            self._emit(Log(f"  {self._at.scenario}: {self._losses[-1]}; what is unfinished is tried again elsewhere"))
            return
        reason = "; ".join(dict.fromkeys(self._losses))
        if len(self._losses) > 1:
            reason = f"lost {plural(len(self._losses), 'time')} in a row: {reason}"
        # What is lost while a model is loaded would be lost again with each of its scenarios.
        one = self._at.scenario if self._at.scenario in self.waiting else next(iter(self.waiting))
        begun = self._node and not self._at.step.startswith((STARTING, LOADING, WAITING))
        for name in [one] if begun else list(self.waiting):
            lost = self.waiting.pop(name)
            if not self.kept.emit_without(name, reason):
                began, now = self._begun_at, time.time()
                self._emit(Failure(lost, "killed", reason, tags=self._tags, started_at=began, ended_at=now))
        self._losses.clear()

    def _tell(self, data: Any) -> None:
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
            event = brought(event, self._where(), partial(self._fetch, self._node))
        if isinstance(event, Failure) and home_of(event.scenario.task):
            event = replace(event, reason=f"{event.reason} (on {self._where()})")
        self.kept(event)

    def _where(self) -> str:
        found = self._nodes.get(self._node)
        return found.name if found else self._node

    def _placed(self, told: Told) -> Told:
        """Return what was told of a scenario as it was asked here, with where it was measured."""
        return replace(told, scenario=self._asked[told.scenario.name], tags={**told.tags, **self._tags})


class _LostError(Exception):
    """An attempt is lost.

    Attributes:
        final: whether another one would end alike.
    """

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
