"""Do a tracking server and its artifact store bear a team? Many processes track at once; every run and value is looked for afterwards.

    python -m benchmarks.team --experiment load             # to MLFLOW_TRACKING_URI, as the user of MLFLOW_TRACKING_USERNAME

Nothing is measured: each process tracks studies of made-up results, as fast as it can, into one MLflow experiment that the first one makes.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import click
from mlflow import MlflowClient

from llmtrack.scenario import GenerateTask, Measurement, Scenario, Variant
from llmtrack.tracking.query import runs
from llmtrack.tracking.tracker import Tracker

SCENARIO_FILE = "sample.txt"
STUDY_FILE = "table.md"


def value(writer: int, number: int) -> float:
    """Return the seconds that are tracked of a scenario, another for each."""
    return 1 + writer + number / 1024


def measurement(writer: int, number: int) -> Measurement:
    """Return a made-up result, known by its number."""
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
    """Track one study; what the tracker has to say is printed."""
    tracker = Tracker.open(None, experiment, folder / "spool", lambda line: print(line, file=sys.stderr))
    study = tracker.start_study("team", "Does all arrive?", {"writer": writer}, {})
    for number in range(scenarios):
        tracker.log(study, measurement(writer, number))
    table = folder / f"table-{writer}.md"
    table.write_text(f"of {writer}", encoding="utf-8")
    tracker.finish_study(study, "finished", files={STUDY_FILE: table})


def write_at_once(writers: int, scenarios: int, experiment: str) -> list[str]:
    """Track from so many processes at once; return what went wrong in them, one line each."""
    # Forked from here, where all is imported, so that they really write at once.
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
            tracker.sync()  # What was kept while the server was too busy to answer.
        left = len(tracker.spool.names())
    return wrong + ([f"{left} records were not sent"] if left else [])


def missing(writers: int, scenarios: int, experiment: str) -> list[str]:
    """Return what did not arrive, or not once, one line each."""
    found = runs(experiment, kind=None)
    client = MlflowClient()
    wrong = []
    if len(found) != writers * (scenarios + 1):
        wrong.append(f"{len(found)} runs instead of {writers * (scenarios + 1)}")
    if unfinished := int((found["status"] != "FINISHED").sum()):
        wrong.append(f"{unfinished} runs are not finished")
    times = Counter(zip(found["scenario"], found["total_latency_s"], found["batch_size"], strict=True))
    for writer in range(writers):
        for number in range(scenarios):
            seen = times[f"w{writer}-s{number}", value(writer, number), number + 1]
            if seen != 1:
                wrong.append(f"scenario {number} of writer {writer} is there {seen} times")
    for run_id, kind in zip(found["run_id"], found["kind"], strict=True):
        file = STUDY_FILE if kind == "study" else SCENARIO_FILE
        if file not in {each.path for each in client.list_artifacts(run_id)}:
            wrong.append(f"run {run_id} has no {file}")
    return wrong


@click.command(help=__doc__)
@click.option("--writers", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--scenarios", type=click.IntRange(min=1), default=12, show_default=True, help="Of each writer."
)
@click.option("--experiment", required=True, help="A new one.")
def main(writers: int, scenarios: int, experiment: str) -> None:
    """Write, look for it, and say how long it took."""
    start = time.perf_counter()
    wrong = write_at_once(writers, scenarios, experiment)
    took = time.perf_counter() - start
    wrong += missing(writers, scenarios, experiment)
    if wrong:
        raise click.ClickException("\n".join(wrong))
    count = writers * (scenarios + 1)
    print(
        f"{writers} processes tracked {count} runs in {took:.1f} s ({count / took:.1f} a second); all are there, once"
    )


if __name__ == "__main__":
    main()
