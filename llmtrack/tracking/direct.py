"""Read runs straight from a SQLite database of this machine: MLflow makes an object of every value, nine tenths of its time.

Nothing is written: the file is opened read-only, and no statement keeps a writer waiting for long. It is read only where the
release of MLflow and the columns of its tables are those that are known here; else MLflow reads, as it does from
every other store. Values mean what they do to MLflow, which a test of made-up histories holds. Where the database itself is of
the release that is known, MLflow is not even imported, which takes longer than to read.
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
from llmtrack.host.garbage import uncollected
from llmtrack.metrics import SERIES_PREFIX
from llmtrack.tracking import store
from llmtrack.tracking.filters import Wanted
from llmtrack.tracking.parsing import RunParser

NEWEST = (3, 17)
"""The newest release of MLflow whose tables were compared: a newer one may keep values elsewhere."""

MIGRATED = "dc11669786a5"
"""Of a database of that release: MLflow itself opens it as it is, and neither refuses nor migrates it."""

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
_SCANNED, _ASKED = 20_000, 500
"""Rows of a statement that goes through a table, and runs of one that asks for theirs."""

Found = TypeVar("Found")

# To look it up in files takes longer than to ask a database.
installed_version = cache(packages.installed_version)


class Known(NamedTuple):
    """A run, as far as it is told apart from others: its id, its MLflow experiment's, and its tags."""

    run_id: str
    experiment_id: str
    tags: dict[str, str]


def experiment_names(uri: str) -> dict[str, str] | None:
    """Return id to name of every active MLflow experiment as MLflow lists them, or None where MLflow has to say.

    Args:
        uri: the store, resolved.
    """

    def ask(database: sqlite3.Connection) -> dict[str, str] | None:
        migrated = database.execute("SELECT version_num FROM alembic_version").fetchall()
        apart = database.execute("SELECT 1 FROM experiments WHERE workspace != 'default' LIMIT 1").fetchone()
        if migrated != [(MIGRATED,)] or apart or "MLFLOW_ENABLE_WORKSPACES" in os.environ:
            return None
        return dict(
            database.execute(
                "SELECT CAST(experiment_id AS TEXT), name FROM experiments WHERE lifecycle_stage = 'active' "
                "ORDER BY creation_time DESC, experiment_id"
            ).fetchall()
        )

    return _asked(uri, ask, _TABLES | _EXPERIMENTS)


def newest(uri: str, experiment_ids: Sequence[str], wanted: Wanted, limit: int) -> list[Known] | None:
    """Return the newest runs that are wanted, or None where MLflow has to read them; see `read`."""

    def ask(database: sqlite3.Connection) -> list[Known]:
        condition, values = _condition(experiment_ids, wanted)
        text = f"SELECT run_uuid, CAST(experiment_id AS TEXT) FROM runs WHERE {condition} ORDER BY start_time DESC, run_uuid LIMIT {limit}"
        of_run = "SELECT key, value FROM tags WHERE run_uuid = ?"
        return [
            Known(run_id, number, dict(database.execute(of_run, (run_id,)).fetchall()))
            for run_id, number in database.execute(text, values).fetchall()
        ]

    return None if wanted.in_mlflows_words else _asked(uri, ask)


def artifact_roots(uri: str, run_ids: Sequence[str]) -> dict[str, str] | None:
    """Return where MLflow keeps the artifacts of each run that there is, a URI, or None where MLflow has to say."""

    def ask(database: sqlite3.Connection) -> dict[str, str]:
        text = "SELECT run_uuid, artifact_uri FROM runs WHERE run_uuid IN (SELECT value FROM json_each(?))"
        return dict(database.execute(text, (json.dumps(list(run_ids)),)).fetchall())

    return _asked(uri, ask)


def read(
    uri: str,
    experiment_names: Mapping[str, str],
    experiment_ids: Sequence[str],
    wanted: Wanted,
    on_page: Callable[[int], None],
) -> RunParser | None:
    """Return the runs that are wanted, or None where MLflow has to read them.

    Args:
        uri: the store, resolved.
        experiment_names: names of MLflow experiments by id.
        experiment_ids: where to look.
        wanted: which runs.
        on_page: is told how many there are.
    """

    def ask(database: sqlite3.Connection) -> RunParser:
        found = RunParser(experiment_names)
        with uncollected():
            _fill(found, database, experiment_ids, wanted)
        return found

    found = None if wanted.in_mlflows_words else _asked(uri, ask)
    if found is not None:
        on_page(len(found))
    return found


def _asked(uri: str, ask: Callable[[sqlite3.Connection], Found], tables: Mapping[str, str] = _TABLES) -> Found | None:
    """Return what a database answers, or None where it is not one that is known here, or cannot be read."""
    path = store.sqlite_path(uri)
    if path is None or "?" in uri or not _is_known_mlflow():
        return None
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            known = all(_is_known(database, table, columns) for table, columns in tables.items())
            return ask(database) if known else None
    except (sqlite3.Error, ValueError):
        return None  # What keeps us from reading is MLflow's to tell.


def _is_known(database: sqlite3.Connection, table: str, known: str) -> bool:
    """Return whether a table has the columns that are known, no more and no fewer."""
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    columns = {str(column[1]) for column in database.execute(f"PRAGMA table_info({table})")}
    return kind == ("table",) and columns == set(known.split())


def _is_known_mlflow() -> bool:
    release = tuple(int(part) for part in installed_version("mlflow").split(".")[:2] if part.isdecimal())
    return bool(release) and release <= NEWEST


def _fill(found: RunParser, database: sqlite3.Connection, experiment_ids: Sequence[str], wanted: Wanted) -> None:
    """Add runs, and then their values: what a run that has ended is read with is then complete."""
    condition, values = _condition(experiment_ids, wanted)
    # A run without a name has the one of its tag.
    named = "SELECT value FROM tags WHERE tags.run_uuid = runs.run_uuid AND key = 'mlflow.runName'"
    name = f"COALESCE(NULLIF(name, ''), ({named}), name)"
    wanted_runs = database.execute(
        f"SELECT run_uuid, {name}, status, CAST(experiment_id AS TEXT), start_time, end_time FROM runs WHERE {condition}",
        values,
    ).fetchall()
    for run in wanted_runs:
        found.begin(*run)
    (count,) = database.execute("SELECT COUNT(*) FROM runs").fetchone()
    # The values of a run are found by an index; where most runs are wanted, going through all of a table is faster.
    read_table = _all if 2 * len(found) > count else partial(_of_runs, tuple(found.run_ids))
    # A value that is no number says nothing, and the last one of a series nothing of the run as a whole.
    numbers = f"NOT is_nan AND key NOT LIKE '{SERIES_PREFIX}%'"
    found.put(
        params=read_table(database, "params", "value"),
        metrics=read_table(database, "latest_metrics", "value", numbers),
        tags=read_table(database, "tags", "value", "key LIKE 'llmtrack.%'"),
    )


def _condition(experiment_ids: Sequence[str], wanted: Wanted) -> tuple[str, list[Any]]:
    """Return the condition of the runs that are wanted, and its values."""
    parts = ["lifecycle_stage = 'active'", "experiment_id IN (SELECT value FROM json_each(?))"]
    values: list[Any] = [json.dumps([int(each) for each in experiment_ids])]

    def among(table: str, condition: str) -> str:
        return f"EXISTS (SELECT 1 FROM {table} WHERE {table}.run_uuid = runs.run_uuid AND {condition})"

    for tag, value in wanted.equal_tags.items():
        parts.append(among("tags", "key = ? AND value = ?"))
        values += [tag, value]
    for text, limit in wanted.limits.items():
        parts.append(f"{text} ?")
        values.append(limit)
    if wanted.run_id:
        parts.append("run_uuid GLOB ?")
        values.append(f"{wanted.run_id}*")
    if wanted.has_tag:
        parts.append(among("tags", "key = ?"))
        values.append(wanted.has_tag)
    holds = "INSTR(LOWER({}), LOWER(?))"
    if wanted.model:
        parts.append(among("params", f"key IN ('model_id', 'model') AND {holds.format('value')}"))
        values.append(wanted.model.strip())
    if wanted.search:
        # As MLflow does, by the tag: old runs have their name only there.
        named = among("tags", f"key = 'mlflow.runName' AND {holds.format('value')}")
        param = among("params", f"key IN ('scenario', 'model_id', 'model') AND {holds.format('value')}")
        parts.append(f"({named} OR {param})")
        values += [wanted.search.strip()] * 2
    return " AND ".join(parts), values


def _all(database: sqlite3.Connection, table: str, value: str, condition: str = "1") -> Iterator[Any]:
    """Yield run, key and value of all of a table; some at once, or a writer would wait for the whole of it."""
    (last,) = database.execute(f"SELECT MAX(rowid) FROM {table}").fetchone()
    text = f"SELECT run_uuid, key, {value} FROM {table} WHERE rowid BETWEEN ? AND ? AND {condition}"
    for first in range(0, (last or 0) + 1, _SCANNED):
        yield from database.execute(text, (first, first + _SCANNED - 1)).fetchall()


def _of_runs(
    run_ids: Sequence[str], database: sqlite3.Connection, table: str, value: str, condition: str = "1"
) -> Iterator[Any]:
    """Yield run, key and value of some runs."""
    text = (
        f"SELECT run_uuid, key, {value} FROM {table} WHERE run_uuid IN (SELECT value FROM json_each(?)) AND {condition}"
    )
    for first in range(0, len(run_ids), _ASKED):
        yield from database.execute(text, (json.dumps(run_ids[first : first + _ASKED]),)).fetchall()
