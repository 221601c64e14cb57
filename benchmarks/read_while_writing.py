"""Are many runs read completely while others write into the same store, and how long does it take?

    python -m benchmarks.read_while_writing --runs 10000 --writers 2 --readings 5

Fills a temporary database (minutes), then reads all of it repeatedly while other processes keep writing. Each reading
must contain every run that existed before it began, exactly once; a row is printed for each.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.synchronize import Event
from pathlib import Path

import click

from benchmarks.read_runs import fill
from llmtrack.tracking.read.query import runs

EXPERIMENT = "busy"
BATCH = 10


@dataclass(frozen=True)
class Reading:
    """Result of one reading: rows, seconds, missing runs of those that existed before, and duplicate rows."""

    rows: int
    seconds: float
    missing: int
    twice: int


def read(uri: str, before: set[str]) -> tuple[Reading, set[str]]:
    """Read all runs; compare them with those known before, and return the runs known now."""
    start = time.monotonic()
    ids = list(runs(EXPERIMENT, kind=None, tracking_uri=uri)["run_id"])
    known = set(ids)
    reading = Reading(len(ids), time.monotonic() - start, len(before - known), len(ids) - len(known))
    return reading, known


def write_until(uri: str, stop: Event) -> None:
    """Write runs, a few at a time, until told to stop."""
    while not stop.is_set():
        fill(uri, EXPERIMENT, BATCH)


def read_while_writing(
    uri: str, writers: int, readings: int, context: SpawnContext | ForkServerContext | None = None
) -> list[Reading]:
    """Read repeatedly while processes of a context write; the last reading is after they have finished."""
    context = context or multiprocessing.get_context("spawn")
    stop = context.Event()
    processes = [context.Process(target=write_until, args=(uri, stop), daemon=True) for _ in range(writers)]
    for process in processes:
        process.start()
    result = []
    try:
        first, known = read(uri, set())
        result.append(first)
        # Wait until the writers have begun.
        while len(known) == first.rows and any(process.is_alive() for process in processes):
            _, known = read(uri, known)
        for _ in range(readings):
            reading, known = read(uri, known)
            result.append(reading)
    finally:
        stop.set()
        for process in processes:
            process.join()
    result.append(read(uri, known)[0])
    if any(process.exitcode for process in processes):
        raise RuntimeError("a writer failed")
    return result


@click.command()
@click.option("--runs", "count", default=10_000, show_default=True)
@click.option("--writers", default=2, show_default=True)
@click.option("--readings", default=5, show_default=True)
def main(count: int, writers: int, readings: int) -> None:
    """Print a row for each reading."""
    with tempfile.TemporaryDirectory() as folder:
        uri = f"sqlite:///{Path(folder, 'mlflow.db')}"
        fill(uri, EXPERIMENT, count)
        click.echo("  rows       s  missing  twice")
        for reading in read_while_writing(uri, writers, readings):
            click.echo(f"{reading.rows:>6}  {reading.seconds:>6.1f}  {reading.missing:>7}  {reading.twice:>5}")


if __name__ == "__main__":
    main()
