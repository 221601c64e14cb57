"""Read runs directly from a local SQLite database, where MLflow spends nine tenths of its time on an object per value.

The file is opened read-only, and no statement blocks writers for long. All functions return None, and MLflow reads, if
its release or the columns of its tables are unknown, as for every other store. A test on generated histories checks
that values mean the same as in MLflow. For a database of the known release MLflow is not even imported, which would
take longer than reading.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar

from llmtrack.host import packages
from llmtrack.host.libraries import gc_paused
from llmtrack.metrics import DETAILS_TAG, ENVIRONMENT_TAG, SERIES_PREFIX, SYSTEM_PREFIX
from llmtrack.tracking.read.filters import RunFilter
from llmtrack.tracking.read.parsing import RunParser
from llmtrack.tracking.uri import open_read_only, sqlite_path

NEWEST = (3, 17)
"""Newest MLflow release whose tables were verified; a newer one may store values elsewhere."""

MIGRATED = "dc11669786a5"
"""Alembic revision of that release: MLflow opens such a database without rejecting or migrating it."""

_RUNS = "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version"
_EXPERIMENTS = {
    "experiments": "experiment_id name artifact_location lifecycle_stage creation_time last_update_time workspace"
}
_TABLES = {
    "runs": f"{_RUNS} lifecycle_stage artifact_uri experiment_id deleted_time",
    "params": "key value run_uuid",
    "tags": "key value run_uuid",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
_ROWS_PER_SCAN, _RUNS_PER_LOOKUP = 20_000, 500

Answer = TypeVar("Answer")

# Cached, because looking it up in files takes longer than a query.
installed_version = cache(packages.installed_version)


class RunHead(NamedTuple):
    """A run as it is looked up: id, MLflow experiment id, and tags."""

    run_id: str
    experiment_id: str
    tags: dict[str, str]


def experiment_names(uri: str) -> dict[str, str] | None:
    """Return the names of active MLflow experiments by id, in MLflow's order."""

    def ask(database: sqlite3.Connection) -> dict[str, str] | None:
        migrated = database.execute("SELECT version_num FROM alembic_version").fetchall()
        workspaces = database.execute("SELECT 1 FROM experiments WHERE workspace != 'default' LIMIT 1").fetchone()
        if migrated != [(MIGRATED,)] or workspaces or "MLFLOW_ENABLE_WORKSPACES" in os.environ:
            return None
        return dict(
            database.execute(
                "SELECT CAST(experiment_id AS TEXT), name FROM experiments WHERE lifecycle_stage = 'active' "
                "ORDER BY creation_time DESC, experiment_id"
            ).fetchall()
        )

    return _query(uri, ask, _TABLES | _EXPERIMENTS)


def experiment_tags(uri: str, key: str) -> dict[str, str] | None:
    """Return the values of a tag by MLflow experiment id."""

    def ask(database: sqlite3.Connection) -> dict[str, str]:
        text = "SELECT CAST(experiment_id AS TEXT), value FROM experiment_tags WHERE key = ?"
        return dict(database.execute(text, (key,)).fetchall())

    return _query(uri, ask, {"experiment_tags": "key value experiment_id"})


def newest(uri: str, experiment_ids: Sequence[str], run_filter: RunFilter, limit: int) -> list[RunHead] | None:
    """Return the newest matching runs."""

    def ask(database: sqlite3.Connection) -> list[RunHead]:
        condition, values = _condition(experiment_ids, run_filter)
        text = f"SELECT run_uuid, CAST(experiment_id AS TEXT) FROM runs WHERE {condition} ORDER BY start_time DESC, run_uuid LIMIT {limit}"
        of_run = "SELECT key, value FROM tags WHERE run_uuid = ?"
        return [
            RunHead(run_id, number, dict(database.execute(of_run, (run_id,)).fetchall()))
            for run_id, number in database.execute(text, values).fetchall()
        ]

    return None if run_filter.is_mlflow_filter else _query(uri, ask)


def artifact_roots(uri: str, run_ids: Sequence[str]) -> dict[str, str] | None:
    """Return the artifact URI of each existing run."""

    def ask(database: sqlite3.Connection) -> dict[str, str]:
        text = "SELECT run_uuid, artifact_uri FROM runs WHERE run_uuid IN (SELECT value FROM json_each(?))"
        return dict(database.execute(text, (json.dumps(list(run_ids)),)).fetchall())

    return _query(uri, ask)


def read(
    uri: str,
    experiment_names: Mapping[str, str],
    experiment_ids: Sequence[str],
    run_filter: RunFilter,
    on_page: Callable[[int], None],
) -> RunParser | None:
    """Read the matching runs of some MLflow experiments, with the names of all experiments by id.

    Args:
        on_page: called with the number of runs.
    """

    def ask(database: sqlite3.Connection) -> RunParser:
        parser = RunParser(experiment_names)
        with gc_paused():
            _fill(parser, database, experiment_ids, run_filter)
        return parser

    parser = None if run_filter.is_mlflow_filter else _query(uri, ask)
    if parser is not None:
        on_page(len(parser))
    return parser


def _query(uri: str, ask: Callable[[sqlite3.Connection], Answer], tables: Mapping[str, str] = _TABLES) -> Answer | None:
    """Query a database; None if it is unknown or unreadable."""
    path = sqlite_path(uri)
    if path is None or "?" in uri or not _is_known_mlflow():
        return None
    try:
        with closing(open_read_only(path)) as database:
            known = all(_is_known(database, table, columns) for table, columns in tables.items())
            return ask(database) if known else None
    except (sqlite3.Error, ValueError):
        return None  # MLflow reports the reason.


def _is_known(database: sqlite3.Connection, table: str, known: str) -> bool:
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    columns = {str(column[1]) for column in database.execute(f"PRAGMA table_info({table})")}
    return kind == ("table",) and columns == set(known.split())


def _is_known_mlflow() -> bool:
    release = tuple(int(part) for part in installed_version("mlflow").split(".")[:2] if part.isdecimal())
    return bool(release) and release <= NEWEST


def _fill(
    parser: RunParser, database: sqlite3.Connection, experiment_ids: Sequence[str], run_filter: RunFilter
) -> None:
    """Add runs first and then their values, so that a finished run is complete."""
    condition, values = _condition(experiment_ids, run_filter)
    # A run without a name uses its tag's.
    tag = "SELECT value FROM tags WHERE tags.run_uuid = runs.run_uuid AND key = 'mlflow.runName'"
    name = f"COALESCE(NULLIF(name, ''), ({tag}), name)"
    rows = database.execute(
        f"SELECT run_uuid, {name}, status, CAST(experiment_id AS TEXT), start_time, end_time FROM runs WHERE {condition}",
        values,
    ).fetchall()
    for row in rows:
        parser.begin(*row)
    (count,) = database.execute("SELECT COUNT(*) FROM runs").fetchone()
    # Values of a run are found by an index; for most of the runs, a table scan is faster.
    read_table = _all if 2 * len(parser) > count else partial(_of_runs, tuple(parser.run_ids))
    # Skip NaN, and series, whose last value does not describe the run as a whole.
    numbers = f"NOT is_nan AND key NOT LIKE '{SERIES_PREFIX}%' AND key NOT LIKE '{SYSTEM_PREFIX}%'"
    parser.put(
        params=read_table(database, "params", "value"),
        metrics=read_table(database, "latest_metrics", "value", numbers),
        tags=read_table(
            database, "tags", "value", f"(key LIKE 'llmtrack.%' OR key IN ('{ENVIRONMENT_TAG}', '{DETAILS_TAG}'))"
        ),
    )


def _condition(experiment_ids: Sequence[str], run_filter: RunFilter) -> tuple[str, list[Any]]:
    """Translate a filter to an SQL condition with its parameters."""
    parts = ["lifecycle_stage = 'active'", "experiment_id IN (SELECT value FROM json_each(?))"]
    values: list[Any] = [json.dumps(list(map(int, experiment_ids)))]

    def exists(table: str, condition: str) -> str:
        return f"EXISTS (SELECT 1 FROM {table} WHERE {table}.run_uuid = runs.run_uuid AND {condition})"

    for tag, value in run_filter.equal_tags.items():
        parts.append(exists("tags", "key = ? AND value = ?"))
        values += [tag, value]
    for text, limit in run_filter.limits.items():
        parts.append(f"{text} ?")
        values.append(limit)
    if run_filter.run_id:
        parts.append("run_uuid GLOB ?")
        values.append(f"{run_filter.run_id}*")
    if run_filter.has_tag:
        parts.append(exists("tags", "key = ?"))
        values.append(run_filter.has_tag)
    contains = "INSTR(LOWER({}), LOWER(?))"
    if run_filter.model:
        parts.append(exists("params", f"key IN ('model_id', 'model') AND {contains.format('value')}"))
        values.append(run_filter.model.strip())
    if run_filter.search:
        # By the tag, like MLflow: old runs have their name only there.
        name = exists("tags", f"key = 'mlflow.runName' AND {contains.format('value')}")
        param = exists("params", f"key IN ('scenario', 'model_id', 'model') AND {contains.format('value')}")
        parts.append(f"({name} OR {param})")
        values += [run_filter.search.strip()] * 2
    return " AND ".join(parts), values


def _all(database: sqlite3.Connection, table: str, value: str, condition: str = "1") -> Iterator[Any]:
    """Yield run, key and value of a whole table in chunks, so as not to block writers."""
    (last,) = database.execute(f"SELECT MAX(rowid) FROM {table}").fetchone()
    text = f"SELECT run_uuid, key, {value} FROM {table} WHERE rowid BETWEEN ? AND ? AND {condition}"
    for first in range(0, (last or 0) + 1, _ROWS_PER_SCAN):
        yield from database.execute(text, (first, first + _ROWS_PER_SCAN - 1)).fetchall()


def _of_runs(
    run_ids: Sequence[str], database: sqlite3.Connection, table: str, value: str, condition: str = "1"
) -> Iterator[Any]:
    text = (
        f"SELECT run_uuid, key, {value} FROM {table} WHERE run_uuid IN (SELECT value FROM json_each(?)) AND {condition}"
    )
    for first in range(0, len(run_ids), _RUNS_PER_LOOKUP):
        yield from database.execute(text, (json.dumps(run_ids[first : first + _RUNS_PER_LOOKUP]),)).fetchall()
