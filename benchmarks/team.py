"""Can a tracking server and its artifact store serve a team? Many processes track at once; every run and value is verified afterwards.

    python -m benchmarks.team --experiment load             # to MLFLOW_TRACKING_URI, as the user of MLFLOW_TRACKING_USERNAME

    python -m benchmarks.team --experiment sweep --nodes 4 --scenarios 200

Nothing is measured: each process tracks studies of made-up results, as fast as it can, into one MLflow experiment that the first one makes.
With `--nodes`, one driver tracks what so many Ray nodes of this machine measure of an engine whose calls sleep.
"""

from __future__ import annotations

import io
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

from benchmarks.nodes import cluster, install, sweep
from llmtrack.run.executors.timeouts import Patience
from llmtrack.run.study.study import run_study
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracking import store
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.uri import resolve_tracking_uri
from llmtrack.tracking.write.tracker import Tracker

SCENARIO_FILE = "sample.txt"
STUDY_FILE = "table.md"


def value(writer: int, number: int) -> float:
    """Return the tracked seconds of a scenario, unique to it."""
    return 1 + writer + number / 1024


def measurement(writer: int, number: int) -> Measurement:
    """Return an artificial result, identified by its number."""
    task = GenerateTask((f"prompt {number}",), max_new_tokens=2)
    return Measurement(
        scenario=Scenario(f"w{writer}-s{number}", Variant("made-up"), task),
        workload_id=f"w{writer}",
        facts={"model_id": "made-up", "device": "cpu", "batch_size": number + 1},
        metrics={"total_latency_s": value(writer, number)},
        samples={"total_latency_s": (value(writer, number),)},
        sample_text=f"said by {writer}, {number}",
        started_at=time.time(),
        ended_at=time.time(),
    )


def write(writer: int, scenarios: int, experiment: str, folder: Path) -> None:
    """Track one study; print the tracker's messages."""
    tracker = Tracker.open(None, experiment, folder / "spool", say)
    study = tracker.start_study("team", "Does all arrive?", {"writer": writer}, {})
    for number in range(scenarios):
        tracker.log(study, measurement(writer, number))
    table = folder / f"table-{writer}.md"
    table.write_text(f"of {writer}", encoding="utf-8")
    tracker.finish_study(study, "finished", files={STUDY_FILE: table})


def write_at_once(writers: int, scenarios: int, experiment: str) -> list[str]:
    """Track from so many processes at once; return their errors, one line each."""
    # Forked after the imports, so that they start writing at the same time.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as name:
        arguments = [(writer, scenarios, experiment, Path(name)) for writer in range(writers)]
        processes = [context.Process(target=write, args=one) for one in arguments]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        wrong = [f"writer {n}: exit code {p.exitcode}" for n, p in enumerate(processes) if p.exitcode]
        tracker = Tracker.open(None, experiment, Path(name) / "spool")
        if tracker.spool.names():
            tracker.sync()  # Records spooled while the server was too busy to answer.
        left = len(tracker.spool.names())
    return wrong + ([f"{left} records were not sent"] if left else [])


def missing(writers: int, scenarios: int, experiment: str) -> list[str]:
    """Return missing or duplicate records, one line each."""
    tracked = runs(experiment, kind=None)
    client = store.connect(resolve_tracking_uri())
    wrong = []
    if len(tracked) != writers * (scenarios + 1):
        wrong.append(f"{len(tracked)} runs instead of {writers * (scenarios + 1)}")
    if unfinished := int((tracked["status"] != "FINISHED").sum()):
        wrong.append(f"{unfinished} runs are not finished")
    times = Counter(zip(tracked["scenario"], tracked["total_latency_s"], tracked["batch_size"], strict=True))
    for writer in range(writers):
        for number in range(scenarios):
            count = times[f"w{writer}-s{number}", value(writer, number), number + 1]
            if count != 1:
                wrong.append(f"scenario {number} of writer {writer} is there {count} times")
    for run_id, kind in zip(tracked["run_id"], tracked["kind"], strict=True):
        file = STUDY_FILE if kind == "study" else SCENARIO_FILE
        if file not in {artifact.path for artifact in client.list_artifacts(run_id)}:
            wrong.append(f"run {run_id} has no {file}")
    return wrong


def sweep_on(nodes: int, scenarios: int, experiment: str) -> list[str]:
    """Track a sweep on so many Ray nodes; return the errors."""
    from llmtrack.run.executors.ray.executor import open_cluster

    with tempfile.TemporaryDirectory() as name:
        install(Path(name))
        tracker = Tracker.open(None, experiment, Path(name) / "spool", say)
        with cluster(nodes) as address:
            (executor,) = open_cluster(address, "same", "node", Patience(), say)
            experiment_of_sweep = sweep(scenarios, 2 * nodes, seconds=0.02)
            try:
                result = run_study(
                    experiment_of_sweep, tracker=tracker, executor=executor, console=Console(file=io.StringIO())
                )
            finally:
                executor.close()
        left = len(tracker.spool.names())
    wrong = [f"{result.failed} scenarios could not be measured"] if result.failed else []
    return [*wrong, *result.problems] + ([f"{left} records were not sent"] if left else [])


def missing_of_sweep(nodes: int, scenarios: int, experiment: str) -> list[str]:
    """Return missing or duplicate records of a sweep, one line each."""
    tracked = runs(experiment)
    client = store.connect(resolve_tracking_uri())
    wrong = []
    for scenario, count in Counter(
        {f"s{number}": 0 for number in range(scenarios)} | Counter(tracked["scenario"])
    ).items():
        if count != 1:
            wrong.append(f"scenario {scenario} is there {count} times")
    if (used := tracked["env.node"].nunique()) != nodes:
        wrong.append(f"{used} nodes measured instead of {nodes}")
    for run_id, scenario, status in zip(tracked["run_id"], tracked["scenario"], tracked["status"], strict=True):
        written = client.get_metric_history(run_id, "total_latency_s")
        if status != "FINISHED" or len(written) != 1 or written[0].value < 0.02:
            wrong.append(f"scenario {scenario} is {status}, its latency is there {len(written)} times")
        if SCENARIO_FILE not in {artifact.path for artifact in client.list_artifacts(run_id)}:
            wrong.append(f"scenario {scenario} has no {SCENARIO_FILE}")
    return wrong


def say(line: str) -> None:
    """Print a message of the tracker or a cluster."""
    print(line, file=sys.stderr)


@click.command(help=__doc__)
@click.option("--writers", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--nodes", type=click.IntRange(min=0), default=0, help="Of Ray, instead of writers.")
@click.option(
    "--scenarios",
    type=click.IntRange(min=1),
    default=12,
    show_default=True,
    help="Of each writer, or of all nodes.",
)
@click.option("--experiment", required=True, help="A new one.")
def main(writers: int, nodes: int, scenarios: int, experiment: str) -> None:
    """Write, verify, and print the duration."""
    start = time.perf_counter()
    if nodes:
        who, count = f"a sweep on {nodes} Ray nodes", scenarios + 1
        wrong = sweep_on(nodes, scenarios, experiment)
    else:
        who, count = f"{writers} processes", writers * (scenarios + 1)
        wrong = write_at_once(writers, scenarios, experiment)
    took = time.perf_counter() - start
    wrong += missing_of_sweep(nodes, scenarios, experiment) if nodes else missing(writers, scenarios, experiment)
    if wrong:
        raise click.ClickException("\n".join(wrong))
    print(f"{who} tracked {count} runs in {took:.1f} s ({count / took:.1f} a second); all are there, once")


if __name__ == "__main__":
    main()
