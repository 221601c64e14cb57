"""Choose the columns of a table: named by the user, or every param that differs between runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmtrack import metrics as schema
from llmtrack.report.tables.table import DASH, Column, Table, condition_columns, known_column
from llmtrack.tracked.frames import check_columns, column_names
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

_NAMES = ("experiment", "scenario", "rule", "metric")


@dataclass(frozen=True)
class Further:
    """Further values of a table's rows.

    Attributes:
        names: available values.
        values: return a value of each row by name; None if a row lacks it.
    """

    names: Sequence[str]
    values: Callable[[str], Sequence[Any]]


def further(runs: Runs) -> Further:
    """Return all values of runs."""
    return Further(column_names(runs), lambda name: [run.get(name) for run in runs])


def with_columns(table: Table, more: Further | None, names: Sequence[str]) -> Table:
    """Insert the requested columns between the identity and result columns.

    Args:
        more: further values of the rows, shown even if all rows agree.
        names: keys of the table's columns, or names of further values.

    Raises:
        UsageError: a column does not exist; the message suggests close matches.
    """
    check_columns(names, [*dict.fromkeys([*table.keys, *(more.names if more else ())])])
    first = [key for key in table.keys if key in _NAMES]
    last = [table.keys[-1]] if table.keys[-1] not in names else []
    keys = [*first, *(name for name in names if name not in first), *last]
    columns = [_column(table, more, key) for key in keys]
    titles, numeric, cells = zip(*columns, strict=True)
    return replace(table, titles=titles, numeric=numeric, rows=tuple(zip(*cells, strict=True)), keys=tuple(keys))


def _column(table: Table, more: Further | None, key: str) -> tuple[str, bool, list[str]]:
    if key in table.keys:
        at = table.keys.index(key)
        return table.titles[at], table.numeric[at], [row[at] for row in table.rows]
    values = more.values(key) if more else []
    column = column_of(key, values)
    return column.title, column.is_number, [column.cell(value) for value in values]


def with_differing_params(table: Table, runs: Runs, roles: Sequence[schema.Role] | None = None) -> Table:
    """Add a column for each other param, of the given roles, in which finished runs differ."""
    known = {column.key for column in condition_columns()}
    wanted = [name for name in runs.params if roles is None or schema.role(name) in roles]
    columns = [column_of_runs(name, runs) for name in wanted if name not in known]
    # A missing value counts as different, except in failed or skipped runs, which were not measured.
    measured = runs.finished.where(lambda run: not run.is_same_as)
    differing = [each for each in columns if len({cell(run, each) for run in measured}) > 1]
    names = sum(key in _NAMES for key in table.keys)

    def joined(own: Sequence[Any], more: Sequence[Any]) -> tuple[Any, ...]:
        return (*own[:names], *more, *own[names:])

    return replace(
        table,
        titles=joined(table.titles, [column.title for column in differing]),
        numeric=joined(table.numeric, [column.is_number for column in differing]),
        keys=joined(table.keys, [column.key for column in differing]),
        rows=tuple(
            joined(row, [cell(run, column) for column in differing]) for row, run in zip(table.rows, runs, strict=True)
        ),
    )


def shared_conditions(runs: Runs) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Return the conditions shared by all runs, such as `device: cpu`, and the columns of those that differ."""
    shared, differing = list[str](), list[Column]()
    for column in condition_columns():
        values = {cell(run, column) for run in runs} - {DASH}
        if len(values) == 1 and not column.quiet:
            shared.append(f"{column.title}: {values.pop()}")
        elif len(values) > 1:
            differing.append(column)
    return tuple(shared), tuple(differing)


def column_of_runs(name: str, runs: Runs) -> Column:
    """Return the column for a value of runs."""
    return column_of(name, [run.get(name) for run in runs])


def column_of(name: str, values: Sequence[Any]) -> Column:
    """Return the column for values of a name."""
    if known := known_column(name):
        return known
    there = [value for value in values if value is not None]
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in there)
    return Column(name, name, _general, numeric and (bool(there) or _is_of_numbers(name)))


def _is_of_numbers(name: str) -> bool:
    """Return whether a value that no run has would be numeric."""
    param = schema.PARAM_BY_NAME.get(name)
    return name in schema.METRIC_BY_NAME or (param is not None and param.kind in (int, float))


def cell(run: Run, column: Column) -> str:
    """Return a run's cell in a column."""
    return column.cell(run.get(column.key))


def _general(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else str(value)
