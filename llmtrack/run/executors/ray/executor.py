"""Measure on the nodes of one kind in a Ray cluster, each group on its own node, several at once."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.host.formatting import clock_text, plural
from llmtrack.run.executors.executor import ParallelWorkers
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.cluster import Cluster, LostAnswerError, RayTask
from llmtrack.run.executors.ray.files import Parcel, named_files, parcel_of
from llmtrack.run.executors.ray.group import RETRIES, Group, LostGroupError
from llmtrack.run.executors.ray.kinds import Kind, kinds_of, read_resources, room_on, split_by_version
from llmtrack.run.executors.timeouts import Patience
from llmtrack.spec.events import Emit
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import to_json
from llmtrack.tracking.write.spool import Notify, to_stderr

SILENT_SECONDS = 300.0
"""Timeout of a silent task; tasks send a heartbeat every few seconds."""

_LOOK_SECONDS = 2.0


def open_cluster(
    address: str, nodes: str, resources: str, patience: Patience, notify: Notify = to_stderr
) -> list[RayExecutor]:
    """Return one executor per kind of node to measure on; closing one closes all.

    Args:
        address: see `Cluster`.
        nodes: `same` (the most common kind) or `each` (every kind).
        resources: see `kinds.read_resources`.

    Raises:
        LlmtrackError: there is no cluster, or no usable node.
    """
    requested = read_resources(resources)
    cluster = Cluster(address)
    try:
        answering, silent = cluster.nodes()
        usable, differing = split_by_version(answering, node.versions())
        unusable = [*silent, *differing]
        for line in unusable:
            notify(line)
        if not usable:
            raise UsageError(f"no node of the cluster can measure: {'; '.join(unusable)}")
        kinds = kinds_of(usable, requested)
        if nodes == "same":
            for other in kinds[1:]:
                notify(f"not measured on: {other.name} ({plural(len(other.nodes), 'node')}); use nodes=each")
            kinds = kinds[:1]
        for kind in kinds:
            notify(f"measures on {plural(len(kind.nodes), 'node')}: {kind.name}")
    except BaseException:
        cluster.close()
        raise
    # A measurement without Ray CPUs is assumed to have the machine to itself by other means, and uses all threads.
    alone = requested is None or "CPU" not in requested
    executors = [RayExecutor(cluster, kind, patience, alone) for kind in kinds]
    executors[0].begin()
    return executors


class Stopped(BaseException):
    """The executor was stopped while measuring."""


class RayExecutor:
    """Measures each group as a task on a node of one kind; `run` is thread-safe.

    A process executor does the work on the node, with its isolation and timeouts. If a node or task is lost, the rest
    of its group continues on another node.

    Args:
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
        self._nodes_by_id = {node.id: node for node in kind.nodes}
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
        group = Group(scenarios, emit, self._nodes_by_id, self._fetch)
        with group.results:
            while group.waiting:
                try:
                    self._attempt(group)
                except LostGroupError as loss:
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

    def _attempt(self, group: Group) -> None:
        """Measure the waiting scenarios on a node, removing each that ends.

        Raises:
            LostGroupError: the node or the task is lost.
        """
        nodes = self._nodes(group)
        task = self._start(nodes, group)
        try:
            self._follow(task, nodes, group)
        except (LostGroupError, LlmtrackError):
            raise
        except BaseException:
            self._end_in_order(task, group)
            raise
        finally:
            with self._lock:
                self._running.pop(task.key, None)
            self._cluster.end(task)

    def _nodes(self, group: Group) -> list[str]:
        """Return the live nodes to use: the one with the group's checkpoints, or preferably not the one last lost."""
        alive = self._alive()
        if not alive:
            raise LostGroupError(f"no node of its kind ({self.kind.name}) is left", final=True)
        if group.home:
            at_home = [node_id for node_id in alive if self._nodes_by_id[node_id].place == group.home]
            if not at_home:
                raise LostGroupError(
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
        alive = self._cluster.alive()
        return [node_id for node_id in self._nodes_by_id if node_id in alive]

    def _start(self, nodes: Sequence[str], group: Group) -> RayTask:
        with self._lock:
            if self._stopping.is_set():
                raise Stopped
            parcels = self._parcels(tuple(group.waiting.values()))
            task = self._cluster.start(
                self.kind.needs, nodes, self._patience, self._alone, self._facts, group.begin(), parcels
            )
            self._running[task.key] = task
            return task

    def _follow(self, task: RayTask, nodes: Sequence[str], group: Group) -> None:
        heard = 0.0
        while True:
            try:
                letter = task.letters.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                if heard and time.monotonic() - heard > SILENT_SECONDS:
                    raise LostGroupError(f"its task was silent for {clock_text(SILENT_SECONDS)}") from None
                if not heard and not self._cluster.alive().intersection(nodes):
                    raise LostGroupError("the nodes that it waited for are gone") from None
                if not heard:
                    group.wait()
                letter = {}
            else:
                heard = time.monotonic()
            if group.take(letter):
                return
            if self._stopping.is_set():
                raise Stopped

    def _end_in_order(self, task: RayTask, group: Group) -> None:
        self._cluster.interrupt(task)
        until = time.monotonic() + self._patience.ending
        with contextlib.suppress(queue.Empty, LostGroupError, LlmtrackError):
            while not group.take(task.letters.get(timeout=max(0.0, until - time.monotonic()))):
                pass
