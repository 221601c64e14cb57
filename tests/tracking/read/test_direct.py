"""Reading directly from the database gives what MLflow gives, after any history of the runs."""

from __future__ import annotations

import math
import random
import sqlite3
import subprocess
import sys
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric

from llmtrack.errors import UsageError
from llmtrack.tracking import store
from llmtrack.tracking.mlflow_experiments import experiment_names
from llmtrack.tracking.read import direct
from llmtrack.tracking.read.filters import RunFilter
from llmtrack.tracking.read.query import runs, tracked_runs
from llmtrack.tracking.uri import sqlite_path

KEYS = (
    "llmtrack.kind",
    "llmtrack.experiment",
    "llmtrack.study_id",
    "llmtrack.env.cpu",
    "llmtrack.baseline",
    "llmtrack.digest.dtype",
    "llmtrack.digest.output_digest",
    "llmtrack.spread",
    "mlflow.llmtrack.details",
    "llmtrack.outcome",
    "mlflow.note.content",
    "mlflow.runName",
    "LLMTRACK.kind",
    "other",
)
TEXTS = (
    "scenario",
    "study",
    "true",
    "1",
    "0.5",
    "it's",
    '"',
    "a%b_c",
    "  x\ny ",
    "Ärger",
    "None",
    "",
    '{"loss":{"sd":0.5,"n":3}}',
)
PARAMS = ("model", "model_id", "scenario", "batch_size", "dtype", "use_cache", "tokens_per_sec", "status", "x y")
METRICS = (
    "tokens_per_sec",
    "tokens_per_sec.low",
    "loss",
    "series/loss",
    "system/disk_usage_percentage",
    "theirs",
    "spread/loss.sd",
    "dtype",
)
NUMBERS = (0.0, -1.5, 1e-300, math.nan, math.inf, -math.inf)
QUERIES = (
    {"kind": None},
    {},
    {"kind": "study", "status": "finished"},
    {"experiment": "study", "kind": None},
    {"experiment": "second", "kind": None},
    {"model": "ÄR", "kind": None},
    {"model": "a%b", "kind": None},
    {"search": " X", "kind": None},
    {"search": "it's", "kind": None},
    {"since": "1970-01-01T00:00:00.005", "until": "1970-01-01T00:00:00.020", "kind": None},
    {"tags": {"other": "Ärger"}, "kind": None},
    {"study": "latest", "kind": None},
    {"study": "latest:study", "kind": None},
    {"study": "1", "kind": None},
    {"study": "none such"},
)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(direct, "_ROWS_PER_SCAN", 7)
    monkeypatch.setattr(direct, "_RUNS_PER_LOOKUP", 2)


@pytest.fixture
def by_mlflow(monkeypatch):
    """Read only through MLflow."""

    def read(**query):
        with monkeypatch.context() as patch:
            for name in ("read", "experiment_names", "newest", "artifact_roots"):
                patch.setattr(direct, name, lambda *_: None)
            return tracked_runs(**query)

    return read


@pytest.fixture
def was_direct(monkeypatch):
    """Whether each reading so far was direct."""
    seen, read = [], direct.read

    def recorded(*arguments):
        parser = read(*arguments)
        seen.append(parser is not None)
        return parser

    monkeypatch.setattr(direct, "read", recorded)
    return seen


def apply_operation(
    rng: random.Random, client: MlflowClient, experiments: list[str], run_ids: list[str], deleted: set[str]
) -> None:
    """Apply one of the operations that MLflow allows on a run."""
    run_id = rng.choice(run_ids)
    operations = ["new", "tag", "tag", "untag", "param", "metric", "end", "name", "delete"]
    operation = "restore" if run_id in deleted else rng.choice(operations)
    if operation == "restore":
        client.restore_run(run_id)
        deleted.remove(run_id)
    elif operation == "new":
        name = rng.choice(["", "it's", "Ärger_1", None])
        start = rng.choice([0, 5, 10, 20, 10])
        run_ids.append(client.create_run(rng.choice(experiments), start, run_name=name).info.run_id)
    elif operation == "tag":
        client.set_tag(run_id, rng.choice(KEYS), rng.choice(TEXTS))
    elif operation == "untag":
        for tag in list(client.get_run(run_id).data.tags)[:1]:
            client.delete_tag(run_id, tag)
    elif operation == "param":
        if (key := rng.choice(PARAMS)) not in client.get_run(run_id).data.params:
            client.log_param(run_id, key, rng.choice(TEXTS))
    elif operation == "metric":
        metric = Metric(rng.choice(METRICS), rng.choice(NUMBERS), rng.randrange(9), rng.randrange(3))
        client.log_batch(run_id, metrics=[metric])
    elif operation == "end":
        client.set_terminated(run_id, rng.choice(["FINISHED", "FAILED", "KILLED"]), rng.randrange(30))
    elif operation == "name":
        client.update_run(run_id, name=rng.choice(["renamed", " x", "a%b_c"]))
    else:
        client.delete_run(run_id)
        deleted.add(run_id)


def outcome(read, query, uri) -> str:
    """Return the runs with the types of their values, or the error, as text."""
    try:
        tracked = read(**query, tracking_uri=uri)
    except UsageError as error:
        return str(error)
    fields = [vars(run).items() for run in tracked]
    in_order = [{name: sorted(v.items()) if isinstance(v, dict) else v for name, v in items} for items in fields]
    return "\n".join(map(repr, in_order))


@pytest.mark.slow(6)
@pytest.mark.parametrize("seed", range(2))
def test_it_reads_what_mlflow_reads_after_any_history(uri, by_mlflow, was_direct, seed):
    client, rng = store.connect(uri), random.Random(seed)
    experiments = [client.create_experiment(name) for name in ("first", "second")]
    run_ids, deleted = [client.create_run(number, 5).info.run_id for number in experiments], set()
    for query in (*QUERIES[:1] * 8, *QUERIES):
        for _ in range(4):
            apply_operation(rng, client, experiments, run_ids, deleted)
        assert outcome(tracked_runs, query, uri) == outcome(by_mlflow, query, uri)
    assert set(was_direct) == {True}, "the tested release of MLflow is known"


@pytest.mark.slow(1)
def test_runs_of_a_deleted_experiment_are_not_read(uri, by_mlflow):
    client = store.connect(uri)
    number = client.create_experiment("gone")
    client.create_run(number)
    assert len(runs(kind=None, tracking_uri=uri)) == 1
    client.delete_experiment(number)
    assert runs(kind=None, tracking_uri=uri).empty
    assert not by_mlflow(kind=None, tracking_uri=uri)


def alter(uri, statement):
    database = sqlite3.connect(sqlite_path(uri))
    database.execute(statement)
    database.commit()
    database.close()


def newer(monkeypatch, uri):
    monkeypatch.setattr(direct, "installed_version", lambda package: f"{direct.NEWEST[0]}.{direct.NEWEST[1] + 1}.0")


def another_column(monkeypatch, uri):
    alter(uri, "ALTER TABLE params ADD COLUMN where_else TEXT")


def moved_tags(monkeypatch, uri):
    alter(uri, "ALTER TABLE tags RENAME TO run_tags")
    alter(uri, "CREATE VIEW tags AS SELECT * FROM run_tags")


def unreadable(monkeypatch, uri):
    monkeypatch.setattr(direct.sqlite3, "connect", Mock(side_effect=sqlite3.OperationalError("database is locked")))


@pytest.mark.parametrize("make_unknown", [newer, another_column, moved_tags, unreadable])
def test_an_unknown_database_is_read_through_mlflow(uri, monkeypatch, was_direct, make_unknown):
    client = store.connect(uri)
    client.create_run("0", tags={"llmtrack.env.cpu": "fast"})
    make_unknown(monkeypatch, uri)
    assert list(runs(kind=None, tracking_uri=uri)["env.cpu"]) == ["fast"]
    assert was_direct == [False]


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE alembic_version SET version_num = 'of another release'",
        "UPDATE experiments SET workspace = 'theirs' WHERE name = 'second'",
        "ALTER TABLE experiments ADD COLUMN owner TEXT",
    ],
)
def test_experiments_of_an_unknown_database_are_listed_by_mlflow(uri, statement):
    client = store.connect(uri)
    for name in ("first", "second"):
        client.create_experiment(name)
    client.delete_experiment(client.get_experiment_by_name("first").experiment_id)
    assert direct.experiment_names(uri) == experiment_names(client)
    alter(uri, statement)
    assert direct.experiment_names(uri) is None


def test_experiments_in_workspaces_are_listed_by_mlflow(uri, monkeypatch):
    assert direct.experiment_names(uri) == {"0": "Default"}
    monkeypatch.setenv("MLFLOW_ENABLE_WORKSPACES", "true")
    assert direct.experiment_names(uri) is None


@pytest.mark.slow(2)
def test_reading_a_database_imports_neither_mlflow_nor_sqlalchemy(uri):
    client = store.connect(uri)
    tags = {
        "llmtrack.kind": "scenario",
        "llmtrack.study_id": "s-1",
        "llmtrack.suite_id": "suite-1",
        "llmtrack.alias.good": "1",
    }
    ids = [client.create_run("0", tags=tags).info.run_id for _ in range(2)]
    for run_id in ids:
        client.log_batch(run_id, [Metric("tokens_per_sec", 1, 0, 0), Metric("peak_memory_mib", 1, 0, 0)])
        client.set_terminated(run_id)
    client.create_run("0", tags=tags | {"llmtrack.kind": "study"})
    commands = (
        ["compare", "--study", "latest"],
        ["compare"],
        ["compare", "--baseline", ids[0][:8], "--candidate", ids[1], "--metric", "peak_memory_mib"],
        ["gate", "--baseline", ids[0], "--candidate", "alias:good", "--fail-if", "peak_memory_mib > 1%"],
        ["pareto", "--quality", "peak_memory_mib"],
        ["recommend", "--study", "alias:good"],
    )
    script = f"""
import sys
from unittest.mock import Mock
from llmtrack.cli import main
for words in {commands!r}:
    try:
        main([*words, "--tracking-uri", {uri!r}], standalone_mode=False)
    except SystemExit as ended:
        assert ended.code in (0, 1), words
print(*{{"mlflow", "sqlalchemy", "torch", "matplotlib", "scipy"}} & set(sys.modules), "were imported", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    # Only `compare` and `pareto` are given no runs, so that they print which study they read.
    latest = "latest: suite-1 (--study chooses another)"
    assert done.stderr.splitlines() == [latest, latest, "were imported"], done.stderr


def test_an_mlflow_filter_is_left_to_mlflow(uri, was_direct):
    client = store.connect(uri)
    client.log_metric(client.create_run("0").info.run_id, "loss", 1.0)
    assert len(runs(kind=None, search="metrics.loss > 0.5", tracking_uri=uri)) == 1
    assert was_direct == [False]


@pytest.mark.slow(1)
def test_reading_writes_nothing(uri, was_direct):
    store.connect(uri).create_run("0")
    before = sqlite_path(uri).read_bytes()
    runs(kind=None, tracking_uri=uri)
    assert was_direct == [True]
    assert sqlite_path(uri).read_bytes() == before
    assert [path.name for path in sqlite_path(uri).parent.iterdir()] == ["mlflow.db"]


def test_the_query_excludes_deleted_runs():
    condition, values = direct._condition(["1"], RunFilter())
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE runs (run_uuid, lifecycle_stage, experiment_id)")
    rows = [("kept", "active", 1), ("gone", "deleted", 1), ("elsewhere", "active", 2)]
    database.executemany("INSERT INTO runs VALUES (?, ?, ?)", rows)
    assert database.execute(f"SELECT run_uuid FROM runs WHERE {condition}", values).fetchall() == [("kept",)]
