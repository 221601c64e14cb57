"""Choose the columns of a table: those that a person names, or every param in which runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.report.table import DASH, Column, Table, condition_columns, known_column
from llmtrack.tracking import ask
from llmtrack.tracking.cells import params_in
from llmtrack.tracking.frame import pick

if TYPE_CHECKING:
    import pandas as pd

_NAMES = ("experiment", "scenario", "rule", "metric")


def with_columns(table: Table, runs: pd.DataFrame | None, names: Sequence[str]) -> Table:
    """Return a table with the columns that a person named, between what each row is of and what is found of it.

    Args:
        table: what there is.
        runs: its rows with all that is known of them, if there is more than the table has.
        names: keys of its columns, or columns of `runs`, shown whether or not rows differ in them.

    Raises:
        UsageError: there is no such column; the message names near ones.
    """
    import pandas as pd

    more = pd.DataFrame(index=range(len(table.rows))) if runs is None else runs.reset_index(drop=True)
    pick(pd.DataFrame(columns=[*dict.fromkeys([*table.keys, *more.columns])]), names)
    first = [key for key in table.keys if key in _NAMES]
    last = [table.keys[-1]] if table.keys[-1] not in names else []
    keys = [*first, *(name for name in names if name not in first), *last]
    columns = [
        (table.titles[at], table.numeric[at], [row[at] for row in table.rows])
        if (at := table.keys.index(key) if key in table.keys else -1) >= 0
        else _column_cells(key, more)
        for key in keys
    ]
    titles, numeric, cells = zip(*columns, strict=True)
    return replace(
        table, titles=titles, numeric=numeric, rows=tuple(zip(*cells, strict=True)), keys=tuple(keys)
    )


def _column_cells(name: str, runs: pd.DataFrame) -> tuple[str, bool, list[str]]:
    column = column_of(name, runs)
    return column.title, column.is_number, [cell(run, column) for run in _rows(runs)]


def _rows(runs: pd.DataFrame) -> list[pd.Series]:
    """Return the rows of runs once for all columns: pandas takes a millisecond to make one."""
    return [run for _, run in runs.iterrows()]


def with_differing_params(
    table: Table, runs: pd.DataFrame, roles: Sequence[schema.Role] | None = None
) -> Table:
    """Return a table of runs with a column more for each other param, of some roles, in which finished runs differ."""
    finished = ask.finished(runs)
    rows = _rows(finished[~ask.where(finished, "outcome", "same_as")])
    known = {column.key for column in condition_columns()}
    wanted = [name for name in params_in(runs) if roles is None or schema.role(name) in roles]
    columns = [column_of(name, runs) for name in wanted if name not in known]
    # To have no value differs too; what failed, or is the same as another, has none for want of being measured.
    differing = [each for each in columns if len({cell(run, each) for run in rows}) > 1]
    names = sum(key in _NAMES for key in table.keys)

    def joined(own: Sequence[Any], more: Sequence[Any]) -> tuple[Any, ...]:
        return (*own[:names], *more, *own[names:])

    return replace(
        table,
        titles=joined(table.titles, [column.title for column in differing]),
        numeric=joined(table.numeric, [column.is_number for column in differing]),
        keys=joined(table.keys, [column.key for column in differing]),
        rows=tuple(
            joined(row, [cell(run, column) for column in differing])
            for row, run in zip(table.rows, _rows(runs), strict=True)
        ),
    )


def shared_conditions(runs: pd.DataFrame) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Return what holds for all runs, such as `device: cpu`, and the columns of the conditions in which they differ."""
    shared, differing, rows = list[str](), list[Column](), _rows(runs)
    for column in condition_columns():
        values = {cell(run, column) for run in rows} - {DASH}
        if len(values) == 1 and not column.quiet:
            shared.append(f"{column.title}: {values.pop()}")
        elif len(values) > 1:
            differing.append(column)
    return tuple(shared), tuple(differing)


def column_of(name: str, runs: pd.DataFrame) -> Column:
    """Return the column of a table that shows a column of the runs."""
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    if known := known_column(name):
        return known
    numeric = name in runs.columns and is_numeric_dtype(runs[name]) and not is_bool_dtype(runs[name])
    return Column(name, name, _general, numeric)


def cell(run: pd.Series, column: Column) -> str:
    """Return what a table shows of a run in a column."""
    return column.cell(run.get(column.key))


def _general(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else str(value)
