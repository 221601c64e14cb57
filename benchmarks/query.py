"""How long does it take to read 10,000 runs into a DataFrame, first and again with 10 new ones? Against `mlflow.search_runs`.

Both read the same SQLite database, each in a separate process, which isolates the peak memory; imports are not timed.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.read_runs import fill
from benchmarks.results import Findings, Goal, benchmark, rounds, row

EXPERIMENT = "llmtrack"
NEW, MADE = 10, 20
READ = """
import json, resource, sys, time
import mlflow, pandas
from benchmarks.read_runs import fill
from llmtrack.tracking.read.query import runs
reader, uri, experiment, new = sys.argv[1:]
mlflow.set_tracking_uri(uri)
number = mlflow.MlflowClient().get_experiment_by_name(experiment).experiment_id
mlflow.search_runs([number], max_results=1)
read = (lambda: mlflow.search_runs([number])) if reader == "mlflow" else lambda: runs(kind=None, tracking_uri=uri)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
table = read()
first = time.perf_counter() - start
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
fill(uri, experiment, int(new))
start = time.perf_counter()
updated = read()
repeated = time.perf_counter() - start
assert len(updated) == len(table) + int(new)
name = "metrics.tokens_per_sec" if reader == "mlflow" else "tokens_per_sec"
print(json.dumps({"first": first, "again": repeated, "memory": grown / 1024, "total": float(table[name].sum()) / len(table)}))
"""


def copy_runs(path: Path, count: int) -> None:
    """Fill a database up to so many runs by copying existing ones, which takes seconds instead of minutes."""
    with closing(sqlite3.connect(path)) as database:
        existing = [run_id for (run_id,) in database.execute("SELECT run_uuid FROM runs ORDER BY start_time")]
        for number in range(len(existing), count):
            source, new = existing[number % len(existing)], uuid.uuid4().hex
            for table in ("runs", "params", "tags", "latest_metrics", "metrics"):
                columns = [column for _, column, *_ in database.execute(f"PRAGMA table_info({table})")]
                values = ["?" if column == "run_uuid" else f'"{column}"' for column in columns]
                if table == "runs":
                    values[columns.index("start_time")] = f"start_time + {60_000 * (number - number % len(existing))}"
                database.execute(
                    f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} WHERE run_uuid = ?",
                    (new, source),
                )
        database.commit()


def read(reader: str, uri: str) -> dict[str, float]:
    """Read all runs twice in a fresh process, the second time with some new ones."""
    command = [sys.executable, "-c", READ, reader, uri, EXPERIMENT, str(NEW)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def measure(small: bool) -> Findings:
    """Fill a database and read it with both, in turn."""
    count = 60 if small else 10_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mlflow.db")
        uri = f"sqlite:///{path}"
        fill(uri, EXPERIMENT, MADE)
        copy_runs(path, count)
        samples = rounds({reader: partial(read, reader, uri) for reader in ("llmtrack", "mlflow")}, 1 if small else 3)
    ours, theirs = samples["llmtrack"], samples["mlflow"]
    where = f"{count:,} runs of 20 metrics, 15 params, 12 tags; SQLite"
    figures = (
        ("reading all", "s", "first", Goal(most=0.35)),
        (f"reading all again, {NEW} of them new", "s", "again", Goal(most=0.05)),
        ("memory for it", "MiB", "memory", Goal(most=1 / 3)),
    )
    rows = (
        row(name, unit, ours[key], theirs[key], where=where, peer="mlflow.search_runs", goal=goal)
        for name, unit, key, goal in figures
    )
    return Findings(
        tuple(rows),
        notes=("Nothing is kept between two readings, so a run that was edited or deleted is seen as it is.",),
    )


main = benchmark("Reading runs")(measure)

if __name__ == "__main__":
    main()
