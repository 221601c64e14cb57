"""How long does a sweep take on one and on two nodes of a Ray cluster, and how much more than in worker processes?

    python -m benchmarks.ray_sweep                                  # a quarter of an hour, on a machine with two idle cores
    python -m benchmarks.ray_sweep --scenarios 8 --seconds 1        # whether it works

The nodes are two of this machine, with one CPU each. Every call of a scripted engine lasts exactly so long, so that what is left
is what llmtrack, Ray and the start of a worker for each variant take. Connecting to the cluster is told apart.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.experiment import Experiment
from llmtrack.run.executors import Executor, ProcessExecutor
from llmtrack.run.patience import Patience
from llmtrack.run.study import run_study
from llmtrack.scenario import GenerateTask, RepeatPolicy, Scenario, Variant
from llmtrack.tracking.tracker import Tracker

ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)


class _RealClock(FakeClock):
    def advance(self, seconds: float) -> None:
        time.sleep(seconds)


def load(variant: Variant) -> ScriptedEngine:
    """Return an engine whose call lasts as many milliseconds as the variant's model is called."""
    return ScriptedEngine(_RealClock(), Script(int(variant.model.split("-")[1]) / 1000, 0.0))


def sweep(scenarios: int, variants: int, seconds: float) -> Experiment:
    """Return an experiment of scenarios that last so long, divided among variants."""
    made = []
    for number in range(scenarios):
        # A millisecond makes another model of it.
        model = f"ms-{round(1000 * seconds) + number % variants}"
        task = GenerateTask((f"prompt {number}",), max_new_tokens=2)
        made.append(Scenario(f"s{number}", Variant(model, backend="known", device="cpu"), task, ONCE))
    return Experiment(
        "sweep", "How long does it take?", tuple(made), lambda runs, series: {}, lambda runs: []
    )


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Let this process, and those that it starts, find the backend `known`."""
    import sys

    info = folder / "known-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: known\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[llmtrack.engines]\nknown = benchmarks.ray_sweep:load\n")
    root = str(Path(__file__).parents[1])
    os.environ |= {
        "PYTHONPATH": os.pathsep.join([str(folder), root]),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",
    }
    sys.path.insert(0, str(folder))
    yield


def timed(experiment: Experiment, executor: Executor, folder: Path) -> float:
    """Return the seconds of a tracked study, its report left out of what is printed and not of what is timed."""
    tracker = Tracker.open(f"sqlite:///{folder / 'mlflow.db'}", "ray", folder / "spool")
    console = Console(file=io.StringIO())
    start = time.perf_counter()
    result = run_study(experiment, tracker=tracker, executor=executor, console=console)
    took = time.perf_counter() - start
    if result.measured != len(experiment.scenarios):
        raise click.ClickException(f"only {result.measured} scenarios were measured")
    return took


def on_ray(experiment: Experiment, nodes: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of connecting to a cluster of so many nodes, and of the study there."""
    from ray.cluster_utils import Cluster

    from llmtrack.run.cluster.opening import open_cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        start = time.perf_counter()
        (executor,) = open_cluster(cluster.address, "same", "node", Patience(), lambda line: None)
        connected = time.perf_counter() - start
        try:
            return connected, timed(experiment, executor, folder)
        finally:
            executor.close()
    finally:
        cluster.shutdown()


@click.command(help=__doc__)
@click.option("--scenarios", type=click.IntRange(min=2), default=40, show_default=True)
@click.option("--variants", type=click.IntRange(min=2), default=4, show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(min=0), default=8.0, show_default=True, help="Of each scenario."
)
def main(scenarios: int, variants: int, seconds: float) -> None:
    """Run the sweep in worker processes, on one node and on two, and print what each took."""
    experiment = sweep(scenarios, variants, seconds)
    with tempfile.TemporaryDirectory() as name, installed(Path(name)):
        folder = Path(name)
        print(
            f"{scenarios} scenarios of {seconds:g} s in {variants} variants: {scenarios * seconds:.0f} s of calls"
        )
        executor = ProcessExecutor()
        try:
            process = timed(experiment, executor, folder)
        finally:
            executor.close()
        print(f"{'worker processes':<20}{process:8.2f} s")
        found = []
        for nodes in (1, 2):
            connected, took = on_ray(experiment, nodes, folder)
            found.append(took)
            print(f"{f'Ray, {nodes} node(s)':<20}{took:8.2f} s  (and {connected:.2f} s to connect)")
    one, two = found
    print(f"speed-up of two nodes: {one / two:.3f} (goal: 1.9)")
    print(f"overhead of Ray a scenario: {1000 * (one - process) / scenarios:.1f} ms (goal: under 50)")


if __name__ == "__main__":
    main()
