"""Read runs straight from a SQLite database of this machine: MLflow makes an object of every value, nine tenths of its time.

Nothing is written: the file is opened read-only, and no statement keeps a writer waiting for long. It is read only where the
release of MLflow and the columns of its tables are those that are known here; else MLflow reads, as it does from
every other store. Values mean what they do to MLflow, which a test of made-up histories holds.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from llmtrack.tracking import store
from llmtrack.tracking.filters import Wanted
from llmtrack.tracking.frame import FrameBuilder

NEWEST = (3, 17)
"""The newest release of MLflow whose tables were compared: a newer one may keep values elsewhere."""

_RUNS = (
    "run_uuid name source_type source_name entry_point_name user_id status start_time end_time source_version"
)
_TABLES = {
    "runs": f"{_RUNS} lifecycle_stage artifact_uri experiment_id deleted_time",
    "params": "key value run_uuid",
    "tags": "key value run_uuid",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
}
_SCANNED, _ASKED = 20_000, 500
"""Rows of a statement that goes through a table, and runs of one that asks for theirs."""


def read(
    uri: str,
    experiment_names: Mapping[str, str],
    experiment_ids: Sequence[str],
    wanted: Wanted,
    on_page: Callable[[int], None],
) -> FrameBuilder | None:
    """Return the runs that are wanted, or None where MLflow has to read them.

    Args:
        uri: the store, resolved.
        experiment_names: names of MLflow experiments by id.
        experiment_ids: where to look.
        wanted: which runs.
        on_page: is told how many there are.
    """
    path = store.sqlite_path(uri)
    if path is None or "?" in uri or wanted.in_mlflows_words or not _is_known_mlflow():
        return None
    found = FrameBuilder(experiment_names)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            if not all(_is_known(database, table) for table in _TABLES):
                return None
            _fill(found, database, experiment_ids, wanted)
    except (sqlite3.Error, ValueError):
        return None  # What keeps us from reading is MLflow's to tell.
    on_page(len(found))
    return found


def _is_known(database: sqlite3.Connection, table: str) -> bool:
    """Return whether a table has the columns that are known, no more and no fewer."""
    kind = database.execute("SELECT type FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    columns = {str(column[1]) for column in database.execute(f"PRAGMA table_info({table})")}
    return kind == ("table",) and columns == set(_TABLES[table].split())


def _is_known_mlflow() -> bool:
    from mlflow.version import VERSION

    return tuple(int(part) for part in VERSION.split(".")[:2] if part.isdecimal()) <= NEWEST


def _fill(
    found: FrameBuilder, database: sqlite3.Connection, experiment_ids: Sequence[str], wanted: Wanted
) -> None:
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
    number = "CASE WHEN is_nan THEN NULL ELSE value END"
    metrics = read_table(database, "latest_metrics", number)
    found.put(
        params=read_table(database, "params", "value"),
        metrics=((run_id, key, math.nan if value is None else value) for run_id, key, value in metrics),
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
    text = f"SELECT run_uuid, key, {value} FROM {table} WHERE run_uuid IN (SELECT value FROM json_each(?)) AND {condition}"
    for first in range(0, len(run_ids), _ASKED):
        yield from database.execute(text, (json.dumps(run_ids[first : first + _ASKED]),)).fetchall()
