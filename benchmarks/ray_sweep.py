"""How long does a sweep take on one and on two nodes of a Ray cluster, compared with worker processes?

Both nodes run on this machine, with one CPU each. Every call sleeps for a known time; the rest is the overhead of llmtrack, Ray
and the start of a worker for each variant. Connecting and starting the first workers is reported separately.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import click
from rich.console import Console

from benchmarks.nodes import cluster, install, sweep
from benchmarks.results import Findings, Goal, benchmark, row
from llmtrack.experiment import Experiment
from llmtrack.host.packages import install_command, installed_version
from llmtrack.run.executors.executor import Executor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.executors.timeouts import Patience
from llmtrack.run.study.study import run_study
from llmtrack.tracking.write.tracker import Tracker

VARIANTS = 4


def timed(experiment: Experiment, start: Callable[[], Executor], folder: Path) -> tuple[float, float]:
    """Return the seconds until an executor is ready, and those of a tracked study on it, including its report."""
    tracker = Tracker.open(f"sqlite:///{folder / 'mlflow.db'}", "ray", folder / "spool")
    console = Console(file=io.StringIO())
    start_time = time.perf_counter()
    executor = start()
    try:
        executor.machine()
        ready = time.perf_counter()
        result = run_study(experiment, tracker=tracker, executor=executor, console=console)
        ended = time.perf_counter()
    finally:
        executor.close()
    if result.measured != len(experiment.scenarios):
        raise click.ClickException(f"only {result.measured} scenarios were measured")
    return ready - start_time, ended - ready


def on_nodes(experiment: Experiment, nodes: int, folder: Path) -> tuple[float, float]:
    """Run `timed` on so many nodes."""
    from llmtrack.run.executors.ray.executor import open_cluster

    with cluster(nodes) as address:

        def start() -> Executor:
            return open_cluster(address, "same", "node", Patience(), lambda line: None)[0]

        return timed(experiment, start, folder)


def measure(small: bool) -> Findings:
    """Measure the sweep in worker processes, on one node and on two."""
    if not installed_version("ray"):
        return Findings(left_out=(f"Ray is not installed: {install_command('ray')}",))
    count, seconds = (8, 0.5) if small else (40, 3.0)
    experiment = sweep(count, VARIANTS, seconds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        install(folder)
        start, process = timed(experiment, cast("Callable[[], Executor]", ProcessExecutor), folder)
        connect_one, one = on_nodes(experiment, 1, folder)
        connect_two, two = on_nodes(experiment, 2, folder)
    where = f"{count} scenarios of {seconds:g} s, {VARIANTS} variants"
    speed_up = row("speed-up of a second node", "", [one / two], where=where, goal=Goal(least=1.9))
    extra_ms = 1000 * (one - process) / count
    overhead = row("a scenario beyond worker processes", "ms", [extra_ms], where=where, goal=Goal(most=50))
    times = [
        row("the sweep", "s", [seconds], where=f"{where}: {place}")
        for place, seconds in (("worker processes", process), ("Ray, 1 node", one), ("Ray, 2 nodes", two))
    ]
    ready = [
        row("until the first can be measured", "s", [seconds], where=place)
        for place, seconds in (
            ("worker processes", start),
            ("Ray, 1 node", connect_one),
            ("Ray, 2 nodes", connect_two),
        )
    ]
    return Findings((speed_up, overhead, *times, *ready))


main = benchmark("How long does a sweep take on one and on two nodes of a Ray cluster?")(measure)

if __name__ == "__main__":
    main()
