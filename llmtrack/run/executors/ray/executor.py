"""Measure on the nodes of one kind in a Ray cluster, each group on its own node, several at once."""

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
from llmtrack.host.formatting import clock_text, plural
from llmtrack.run.executors.executor import BESIDE, ParallelWorkers, PartialResults
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.cluster import Cluster, LostAnswerError, RayTask
from llmtrack.run.executors.ray.files import Parcel, home_of, named_files, note_home, parcel_of, with_files
from llmtrack.run.executors.ray.kinds import Kind, Node, room_on
from llmtrack.run.executors.timeouts import LOADING, STARTING, Patience
from llmtrack.spec.events import Begun, Emit, Log, Progress, SoFar, event_from_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import to_json
from llmtrack.tracking.environment import environment_id

RETRIES = 2
"""Consecutive retries of a group lost with its node without progress in between."""

SILENT_SECONDS = 300.0
"""Timeout of a silent task; tasks send a heartbeat every few seconds."""

WAITING = "waiting for a free node"

_LOOK_SECONDS = 2.0


Located = TypeVar("Located", bound=Measurement | Failure | Begun)


class Stopped(BaseException):
    """The executor was stopped while measuring."""


class RayExecutor:
    """Measures each group as a task on a node of one kind; `run` is thread-safe.

    A process executor does the work on the node, with its isolation and timeouts. If a node or task is lost, the rest
    of its group continues on another node.

    Args:
        kind: the nodes to use.
        patience: timeouts of a silent worker.
        alone: whether a measurement has its node to itself.
    """

    at_once = 64
    """Groups submitted to Ray at a time; it runs as many as there are free nodes."""

    def __init__(self, cluster: Cluster, kind: Kind, patience: Patience, alone: bool) -> None:
        self.kind = kind
        self.where = kind.name
        self._cluster = cluster
        self._patience = patience
        self._alone = alone
        self._machine: dict[str, str] | None = None
        self._nodes_by_id = {each.id: each for each in kind.nodes}
        self._sent: dict[str, Parcel] = {}
        self._stopping = threading.Event()
        self._running: dict[str, RayTask] = {}
        self._lock = threading.Lock()
        self._workers_lock = threading.Lock()

    def begin(self) -> None:
        """Start a worker on every node without waiting for its imports."""
        for node_id in self._nodes_by_id:
            self._cluster.call(node.describe, self.kind.needs, [node_id], self._patience, self._alone, self._facts)

    def machine(self) -> Mapping[str, str]:
        """See `Executor.machine`."""
        if self._machine is None:
            self._machine = dict(self._ask(node.describe, self._facts))
        return self._machine

    def check(self, scenarios: Sequence[Scenario]) -> None:
        """See `Executor.check`."""
        self._ask(node.check, [to_json(scenario) for scenario in scenarios], self._parcels(scenarios))

    def identify(self, scenario: Scenario) -> Mapping[str, str]:
        """See `Executor.identify`."""
        return dict(self._ask(node.identify, to_json(scenario), self._parcels([scenario])))

    def run(self, scenarios: Sequence[Scenario], emit: Emit) -> None:
        """Measure scenarios of one variant on a free node.

        Raises:
            Stopped: `stop` was called; what was measured is emitted.
        """
        group = _Group(scenarios, emit, self._nodes_by_id, self._fetch)
        with group.results:
            while group.waiting:
                try:
                    self._attempt(group)
                except _LostError as loss:
                    group.lose(loss)

    @contextmanager
    def start_workers(self, workers: int | None) -> Iterator[ParallelWorkers]:
        """Start parallel workers as Ray tasks; work lost with a node continues elsewhere, as in `run`.

        Args:
            workers: how many; None for as many as fit.
        """
        # Two at once would share the nodes without knowing of each other.
        with self._workers_lock:
            room = max(1, room_on(self.kind, self._cluster.alive()))
            yield ParallelWorkers((self.run,) * min(workers or room, room), self.stop, all_at_once=True)

    def stop(self) -> None:
        """Request cancellation; keep partial results that can be resumed."""
        with self._lock:
            self._stopping.set()
            running = list(self._running.values())
        for task in running:
            self._cluster.interrupt(task)

    def close(self) -> None:
        """Disconnect."""
        self._cluster.close()

    @property
    def _facts(self) -> dict[str, str]:
        """Facts about this kind of node that only the cluster knows."""
        label = self.kind.nodes[0].facts.get("node_kind")
        return {"node_kind": label} if label else {}

    def _parcels(self, scenarios: Sequence[Scenario]) -> list[Parcel]:
        """Return the local files that scenarios name, each sent once for all nodes."""
        files = named_files(scenarios)
        for written, path in files.items():
            if written not in self._sent:
                self._sent[written] = parcel_of(written, path, self._cluster.send)
        return [self._sent[written] for written in files]

    def _ask(self, function: Any, *args: Any) -> Any:
        """Call a function on a node of the kind; retry on another if that is lost.

        Raises:
            LlmtrackError: raised by the function, or why no node answers.
        """
        lost: LostAnswerError | None = None
        for _ in range(1 + RETRIES):
            nodes = tuple(self._alive() or self._nodes_by_id)
            ref = self._cluster.call(function, self.kind.needs, nodes, self._patience, self._alone, *args)
            try:
                return self._cluster.answer(ref)
            except LostAnswerError as error:
                lost = error
        raise LlmtrackError(f"no node of {self.kind.name} answers: {lost}") from lost

    def _attempt(self, group: _Group) -> None:
        """Measure the waiting scenarios on a node, removing each that ends.

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
        """Return the live nodes to use: the one with the group's checkpoints, or preferably not the one last lost."""
        alive = self._alive()
        if not alive:
            raise _LostError(f"no node of its kind ({self.kind.name}) is left", final=True)
        if group.home:
            at_home = [node_id for node_id in alive if self._nodes_by_id[node_id].place == group.home]
            if not at_home:
                raise _LostError(
                    f"its checkpoints are on {group.home}, which is not among the nodes: start it there again, or train "
                    "anew with resume=false",
                    final=True,
                )
            return at_home
        return [node_id for node_id in alive if node_id != group.lost_on] or alive

    def _fetch(self, node_id: str, path: str) -> Parcel:
        """Fetch a worker's output from a node.

        Raises:
            LlmtrackError: the node or the file is gone.
        """
        parcel: Parcel = self._cluster.answer(self._cluster.call(node.fetch, {}, [node_id], path))
        return parcel

    def _alive(self) -> list[str]:
        """Return the live nodes of the kind."""
        alive = self._cluster.alive()
        return [node_id for node_id in self._nodes_by_id if node_id in alive]

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
                    raise _LostError(f"its task was silent for {clock_text(SILENT_SECONDS)}") from None
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
        """Interrupt a task, and forward its remaining events."""
        self._cluster.interrupt(task)
        until = time.monotonic() + self._patience.ending
        with contextlib.suppress(queue.Empty, _LostError, LlmtrackError):
            while not group.take(task.letters.get(timeout=max(0.0, until - time.monotonic()))):
                pass


class _Group:
    """The unfinished scenarios of a group, and the history of its attempts.

    Args:
        scenarios: of one variant.
        emit: receives the events.
        nodes: by id.
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
            _LostError: the task is lost.
            LlmtrackError: the cluster is lost.
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
            self._take_event(letter["event"])
        if "ended" in letter and self.waiting:
            raise _LostError("its task ended without reporting all outcomes")
        return "ended" in letter

    def lose(self, loss: _LostError) -> None:
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


class _LostError(Exception):
    """An attempt is lost.

    Attributes:
        final: whether a retry would fail, too.
    """

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
