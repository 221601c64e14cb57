"""Local Ray nodes, and sweeps with scenarios of known duration, whose calls sleep."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.experiment import Experiment
from llmtrack.host.signals import signal_handlers_restored
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, RepeatPolicy

# A single repeat: otherwise disturbances by the other node would cause more repeats.
ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_seconds=0.001, max_repeats=1)


class _RealClock(FakeClock):
    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


def load(variant: Variant) -> ScriptedEngine:
    """Return an engine whose call lasts the milliseconds in the name of the variant's model."""
    return ScriptedEngine(_RealClock(), Script(int(variant.model.split("-")[1]) / 1000, 0.0))


def sweep(scenarios: int, variants: int, seconds: float) -> Experiment:
    """Return an experiment of scenarios with a known duration, divided among variants."""
    planned = []
    for number in range(scenarios):
        # A different duration makes it another variant.
        model = f"ms-{round(1000 * seconds) + number % variants}"
        task = GenerateTask((f"prompt {number}",), max_new_tokens=2)
        planned.append(Scenario(f"s{number}", Variant(model, backend="known", device="cpu"), task, ONCE))
    return Experiment("sweep", "How long does it take?", tuple(planned))


def install(folder: Path) -> None:
    """Make the backend of the sweeps available to this process and its children."""
    info = folder / "known-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: known\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[llmtrack.engines]\nknown = benchmarks.nodes:load\n")
    root = str(Path(__file__).parents[1])
    earlier = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(folder), root, *earlier]),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    sys.path.insert(0, str(folder))


@contextmanager
def cluster(nodes: int) -> Iterator[str]:
    """Start a local cluster with nodes of one CPU each and an idle head; yield its address."""
    from ray.cluster_utils import Cluster

    with signal_handlers_restored():  # A signal shuts this process and its nodes down in order.
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(nodes):
            started.add_node(wait=False, num_cpus=1, object_store_memory=80 * 2**20)
    try:
        started.wait_for_nodes(timeout=300)
        yield started.address
    finally:
        started.shutdown()
