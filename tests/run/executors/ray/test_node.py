"""What a node does for a task, and connection errors; without a cluster."""

from __future__ import annotations

import pytest

from llmtrack.errors import MissingDependencyError, UsageError
from llmtrack.run.executors.ray import cluster, node
from llmtrack.run.executors.timeouts import Patience
from tests.tracking.conftest import free_port


class Worker:
    """An executor that counts its creations and closes."""

    def __init__(self, patience):
        self.open = True

    def close(self):
        self.open = False


@pytest.mark.parametrize(
    ("variable", "values", "left"),
    [
        ("CUDA_VISIBLE_DEVICES", ("0", "0", "1"), [False, True]),
        ("CUDA_VISIBLE_DEVICES", ("0", "1", "0"), [False, False, True]),
        ("HIP_VISIBLE_DEVICES", ("0,1", "2,3"), [False, True]),
        ("OMP_NUM_THREADS", ("2", "4"), [False, True]),
    ],
)
def test_an_idle_worker_is_reused_for_the_same_devices_only(monkeypatch, variable, values, left):
    """Ray may give a process another GPU for its next task; the old worker would still use the first."""
    created = []

    def make(patience):
        created.append(Worker(patience))
        return created[-1]

    monkeypatch.setattr(node, "ProcessExecutor", make)
    monkeypatch.setattr(node, "_idle", None)
    for value in values:
        monkeypatch.setenv(variable, value)
        with node._worker(Patience(), False) as worker:
            assert worker is created[-1]
    assert [worker.open for worker in created] == left


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(cluster, "installed_version", lambda package: "")
    with pytest.raises(MissingDependencyError, match=r'executor=ray needs Ray.*: pip install "llmtrack\[ray\]"'):
        cluster.Cluster("auto")


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.59.0
    Python: 3.10.1
This process on node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.10.1
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            RuntimeError(MISMATCH),
            "Version mismatch: The cluster was started with: Ray: 2.59.0 Python: 3.10.1 This process on node 10.0.0.2 was "
            "started with: Ray: 2.60.0 Python: 3.10.1: use the same Ray and Python on all machines",
        ),
        (
            ConnectionError("Could not find any running Ray instance.\nPlease specify the one."),
            "Could not find any running Ray instance. Please specify the one; start one with `ray start --head`",
        ),
        (ValueError(), "ValueError; start one with `ray start --head`"),
    ],
)
def test_a_connection_error_has_rays_text_and_a_remedy(error, message):
    line = cluster._connection_error(error)
    assert line.startswith(message)
    assert "\n" not in line
    assert len(cluster._connection_error(RuntimeError("long " * 1000))) < 1000


@pytest.mark.slow(1)
@pytest.mark.parametrize("address", ["127.0.0.1:{}", "nowhere.invalid:{}", "ray://127.0.0.1:{}", "auto"])
def test_an_unreachable_address_fails_at_once(address, monkeypatch):
    """Ray would retry for a quarter of an hour, even if this machine's last cluster is gone."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install llmtrack[ray]")
    port = free_port()
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    with pytest.raises(UsageError) as refused:
        cluster.Cluster(address.format(port))
    line = str(refused.value)
    assert "nobody answers at" in line
    assert f":{port} (" in line
    assert "start one with `ray start --head`" in line
    assert "\n" not in line
