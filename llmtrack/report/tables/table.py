"""A table as text cells, and its columns: named by the user, or every param that differs between runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmtrack import metrics as schema
from llmtrack.tracked.frames import column_names
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

DASH = "–"
GAP = 2
"""Spaces between columns."""
# Columns that identify a row and come first.
_IDENTITY = ("experiment", "scenario", "rule", "metric")


@dataclass(frozen=True)
class Column:
    """A column of a table of runs.

    A `quiet` condition is only shown if runs differ in it, a `quiet` metric only on request. With `spread`, half of the
    95 % interval is shown beside the value, as a share of it.
    """

    key: str
    title: str
    render: Callable[[Any], str]
    is_number: bool = True
    quiet: bool = False
    spread: bool = False

    def cell(self, value: Any) -> str:
        """Format a value; a dash for None."""
        return DASH if value is None else self.render(value)

    def cell_of(self, run: Run) -> str:
        """Format a run's value."""
        return self.cell(run.get(self.key))


@dataclass(frozen=True)
class Table:
    """A table ready to print.

    Attributes:
        conditions: values shared by all rows, such as `device: cpu`.
        titles: column headings.
        numeric: which columns are numeric.
        rows: cells as text.
        run_ids: MLflow run of each row.
        notes: what does not fit into cells, such as failure reasons.
        keys: key of each column, for selecting it and for its importance.
    """

    conditions: tuple[str, ...]
    titles: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str, ...], ...]
    run_ids: tuple[str, ...]
    notes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExtraValues:
    """Further values of a table's rows, available as columns.

    Attributes:
        values: maps a name to a value per row; None if a row lacks it.
    """

    names: Sequence[str]
    values: Callable[[str], Sequence[Any]]


def values_of_runs(runs: Runs) -> ExtraValues:
    """Return all values of runs, to be added as columns."""
    return ExtraValues(column_names(runs), lambda name: [run.get(name) for run in runs])


def with_columns(table: Table, extra: ExtraValues | None, names: Sequence[str]) -> Table:
    """Insert the requested columns between the identity and result columns.

    Args:
        extra: further values of the rows, shown even if all rows agree.
        names: keys of the table's columns, or names of further values.
    """
    first = [key for key in table.keys if key in _IDENTITY]
    last = [table.keys[-1]] if table.keys[-1] not in names else []
    keys = [*first, *(name for name in names if name not in first), *last]
    columns = [_column(table, extra, key) for key in keys]
    titles, numeric, cells = zip(*columns, strict=True)
    return replace(table, titles=titles, numeric=numeric, rows=tuple(zip(*cells, strict=True)), keys=tuple(keys))


def with_differing_params(table: Table, runs: Runs, roles: Sequence[schema.Role] | None = None) -> Table:
    """Add a column for each other param, of the given roles, in which finished runs differ."""
    shown = {column.key for column in condition_columns()}
    names = [name for name in runs.params if name not in shown and (roles is None or schema.role(name) in roles)]
    # A missing value counts as different, except in failed or skipped runs, which were not measured.
    measured = runs.finished.where(lambda run: not run.is_same_as)
    columns = [column_of_runs(name, runs) for name in names]
    columns = [column for column in columns if len(set(map(column.cell_of, measured))) > 1]
    place = sum(key in _IDENTITY for key in table.keys)

    def insert(items: Sequence[Any], added: Sequence[Any]) -> tuple[Any, ...]:
        return (*items[:place], *added, *items[place:])

    return replace(
        table,
        titles=insert(table.titles, [column.title for column in columns]),
        numeric=insert(table.numeric, [column.is_number for column in columns]),
        keys=insert(table.keys, [column.key for column in columns]),
        rows=tuple(
            insert(row, [column.cell_of(run) for column in columns]) for row, run in zip(table.rows, runs, strict=True)
        ),
    )


def shared_conditions(runs: Runs, within_experiments: bool = False) -> tuple[tuple[str, ...], tuple[Column, ...]]:
    """Return the conditions shared by all runs, such as `device: cpu`, and the columns of those that differ.

    Args:
        within_experiments: leave out what only differs between experiments (such as the scoring batch size).
    """
    shared, differing = list[str](), list[Column]()
    for column in condition_columns():
        cells = {(run.experiment if within_experiments else "", column.cell_of(run)) for run in runs}
        cells = {(experiment, text) for experiment, text in cells if text != DASH}
        values = {text for _, text in cells}
        if len(values) == 1 and not column.quiet:
            shared.append(f"{column.title}: {values.pop()}")
        elif len(cells) > len({experiment for experiment, _ in cells}):
            differing.append(column)
    return tuple(shared), tuple(differing)


def condition_columns() -> list[Column]:
    """Return the condition columns: shown in the table if runs differ, above it if they agree."""
    return [_condition(param, param.shown) for param in schema.in_column_order(schema.PARAMS) if param.shown]


def metric_columns() -> list[Column]:
    """Return the columns of the metrics that have one."""
    return [_metric(metric, metric.shown) for metric in schema.in_column_order(schema.METRICS) if metric.shown]


def column_of_runs(name: str, runs: Runs) -> Column:
    """Return the column for a value of runs."""
    return _column_of(name, [run.get(name) for run in runs])


def _column_of(name: str, values: Sequence[Any]) -> Column:
    """Return the column of a condition or metric; for any other value, a general one."""
    param, metric = schema.PARAM_BY_NAME.get(name), schema.METRIC_BY_NAME.get(name)
    if param and param.shown:
        return _condition(param, param.shown)
    if metric and metric.shown:
        return _metric(metric, metric.shown)
    present = [value for value in values if value is not None]
    if present:
        numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)
    else:
        numeric = metric is not None or (param is not None and param.kind in (int, float))
    return Column(name, name, _general, numeric)


def _column(table: Table, extra: ExtraValues | None, key: str) -> tuple[str, bool, list[str]]:
    """Return title, alignment and cells of a column of the table or of further values."""
    if key in table.keys:
        index = table.keys.index(key)
        return table.titles[index], table.numeric[index], [row[index] for row in table.rows]
    values = extra.values(key) if extra else []
    column = _column_of(key, values)
    return column.title, column.is_number, [column.cell(value) for value in values]


def _condition(param: schema.Param, shown: schema.Shown) -> Column:
    return Column(param.name, shown.title, shown.render, param.kind in (int, float), shown.quiet)


def _metric(metric: schema.Metric, shown: schema.Shown) -> Column:
    return Column(metric.name, shown.title, shown.render, quiet=shown.quiet, spread=shown.spread)


def _general(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else str(value)
