"""A real Ray cluster on this machine: a head that does not measure, and nodes of one CPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmtrack.host.signals import STOPPING, signal_handlers_restored
from llmtrack.run.executors.ray import node
from llmtrack.run.executors.ray.executor import RayExecutor
from tests.conftest import HANG_S
from tests.extensions import scripted_backend
from tests.run.executors.ray.noticing import Noticing

# Without the programs of a head that nobody here asks.
NODES = 3
STARTED = {"setup_worker_path": str(Path(__file__).with_name("start_worker.py"))}
HEAD = {"num_cpus": 0, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True, **STARTED}
WORKER = {"num_cpus": 1, "object_store_memory": 80 * 2**20, **STARTED}


class RealCluster:
    """A cluster whose nodes can be killed; `fill` starts others in their place.

    Args:
        folder: where its backend `paced` is (see paced.py), and what that notes.
    """

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self.folder = folder
        with signal_handlers_restored():
            self.ray = Cluster(initialize_head=True, head_node_args=HEAD)

    @property
    def address(self) -> str:
        return self.ray.address

    def fill(self, number: int, **options: object) -> None:
        """Start nodes until there are so many."""
        with signal_handlers_restored():  # other tests of this process end by signals
            while len(self.ray.worker_nodes) < number:
                self.ray.add_node(wait=False, **{**WORKER, **options})
        self.ray.wait_for_nodes(timeout=HANG_S)

    def kill(self, node: str) -> None:
        """Kill a node by its name, as a power cut would."""
        (victim,) = (worker for worker in self.ray.worker_nodes if worker.node_id[:6] in node)
        self.ray.remove_node(victim, allow_graceful=False)


def tell(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Set environment variables of nodes, workers and drivers, but not of this process's other children."""
    variables = {
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(Path(__file__).parents[4])]),
        "PACED_LOG": str(folder),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
        # A node that was killed is asked five times before it is taken for dead: every 3 s otherwise.
        "RAY_health_check_initial_delay_ms": "500",
        "RAY_health_check_period_ms": "300",
    }
    for name, value in variables.items():
        patch.setenv(name, value)
    patch.syspath_prepend(str(folder / "site"))


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A head without nodes; it ends with the tests of a module, since its programs are never idle."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install llmtrack[ray]")
    folder = tmp_path_factory.mktemp("ray")
    scripted_backend(folder / "site", Path(__file__).with_name("paced.py"))
    with pytest.MonkeyPatch.context() as patch:
        tell(patch, folder)
        cluster = RealCluster(folder)
    yield cluster
    cluster.ray.shutdown()


@pytest.fixture
def cluster(real_cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> RealCluster:
    """The cluster with at least one node."""
    tell(monkeypatch, real_cluster.folder)
    real_cluster.fill(1)
    return real_cluster


@pytest.fixture
def two_kinds(cluster: RealCluster) -> Iterator[RealCluster]:
    """The cluster with two nodes, one of which has a label that makes it another kind until the test ends."""
    nodes = cluster.ray.worker_nodes
    while len(nodes) > 1:
        cluster.kill(next(iter(nodes)).node_id[:6])
    usual = set(nodes)
    cluster.fill(2, labels={"llmtrack-kind": "cooled"})
    yield cluster
    for other in set(nodes) - usual:
        cluster.kill(other.node_id[:6])


@contextmanager
def opened(cluster: RealCluster) -> Iterator[RayExecutor]:
    """Open the cluster's executor; Ray's own SIGTERM handler would end a driver before it tracks its results."""
    from llmtrack.run.executors.ray.executor import open_cluster

    handlers = {number: signal.getsignal(number) for number in STOPPING}
    lines: list[str] = []
    patience = Noticing(starting=HANG_S, loading=HANG_S, step=HANG_S)
    (executor,) = open_cluster(cluster.address, "same", "node", patience, lines.append)
    try:
        assert lines[-1].startswith(f"measures on {NODES} nodes: ")
        assert {number: signal.getsignal(number) for number in STOPPING} == handlers
        yield executor
    finally:
        executor.close()
    assert {number: signal.getsignal(number) for number in STOPPING} == handlers


@pytest.fixture(scope="class")
def executor(real_cluster: RealCluster) -> Iterator[RayExecutor]:
    """An executor of three nodes for several tests, each of which may kill one: to connect takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        tell(patch, real_cluster.folder)
        real_cluster.fill(NODES)
        with opened(real_cluster) as executor:
            for node_id in executor._nodes_by_id:  # until all are free
                executor._cluster.answer(executor._cluster.call(node.probe, executor.kind.needs, [node_id]))
            yield executor


class FakeCluster:
    """Hands out tasks that tell what is scripted: each attempt's letters, the last of which may be an exception to
    raise.

    Args:
        attempts: letters of each attempt, in order.
        alive: ids of the nodes that live at each attempt; the last of them from then on.
    """

    def __init__(self, *attempts: list[object], alive: tuple[set[str], ...] = ({"a", "b"},)) -> None:
        self.attempts, self.lives = list(attempts), list(alive)
        self.asked: list[tuple[list[str], list[str]]] = []
        self.interrupted: list[str] = []
        self.ended: list[str] = []

    def alive(self) -> set[str]:
        return self.lives[0]

    def start(self, needs, nodes, patience, alone, facts, scenarios, parcels):
        import queue

        from llmtrack.run.executors.ray.cluster import RayTask

        self.asked.append((list(nodes), [scenario["name"] for scenario in scenarios]))
        letters: queue.SimpleQueue = queue.SimpleQueue()
        for letter in self.attempts.pop(0):
            letters.put(letter)
        if len(self.lives) > 1:
            self.lives.pop(0)
        return RayTask(f"task {len(self.asked)}", letters, SimpleNamespace())

    def interrupt(self, task):
        self.interrupted.append(task.key)

    def end(self, task):
        self.ended.append(task.key)
