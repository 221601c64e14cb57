"""Convert tracked runs to a typed DataFrame at the public edge, and back."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracked.run import ENV, IDENTITY, Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

TEXT = "string[python]"
"""Dtype of texts: Python objects, because runs share most of their texts and building rows is three times as fast."""

_TIMES = dict.fromkeys(("start_time", "end_time"), "datetime64[ms, UTC]")
# Columns with dtypes, in order.
ID_COLUMNS: dict[str, str] = dict.fromkeys(IDENTITY, TEXT) | {"baseline": "boolean", "position": "Int64"} | _TIMES

_DTYPE_OF_KIND: dict[type, str] = {str: TEXT, int: "Int64", float: "float64", bool: "boolean"}
# Attribute that lists the param columns: an unknown param may look like a metric.
PARAM_COLUMNS = "llmtrack.params"
# Maximum number of columns to list in a message.
_MOST_LISTED = 30


def frame_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Return runs as a DataFrame: identity, known params and metrics, then the others, then the environment."""
    import pandas as pd

    @cache
    def empty(dtype: str) -> Any:
        return _array([None] * len(runs), dtype)

    columns: dict[str, Any] = {name: _identity(runs, name, dtype) for name, dtype in ID_COLUMNS.items()}

    def add(rows: Sequence[Mapping[str, Any]], known: Mapping[str, type]) -> None:
        names = set[str]().union(*rows)
        for name in _known_first(names, known):
            kind = known.get(name)
            if name in names:
                columns[name] = _array(*_typed([row.get(name) for row in rows], kind))
            else:
                columns[name] = empty(_DTYPE_OF_KIND[kind or str])

    add([run.params for run in runs], {param.name: param.kind for param in schema.PARAMS})
    params = tuple(name for name in columns if name not in ID_COLUMNS)
    add([run.metrics for run in runs], dict.fromkeys(schema.METRIC_BY_NAME, float))
    for name in sorted(set[str]().union(*(run.environment for run in runs))):
        columns[ENV + name] = _array([run.environment.get(name) for run in runs], TEXT)
    table = pd.DataFrame(columns)
    table.attrs[PARAM_COLUMNS] = params
    return table


def runs_of(table: pd.DataFrame) -> Runs:
    """Convert rows of `llmtrack.runs` back to runs, including the caller's changes, also after a CSV file.

    Raises:
        UsageError: a time cannot be read.
    """
    table = _with_times(table)
    count = len(table)
    identity: list[dict[str, Any]] = [{} for _ in range(count)]
    params: list[dict[str, Any]] = [{} for _ in range(count)]
    metrics: list[dict[str, float]] = [{} for _ in range(count)]
    environment: list[dict[str, str]] = [{} for _ in range(count)]
    param_columns = table.attrs.get(PARAM_COLUMNS, ())
    for column in map(str, table.columns):
        rows: Sequence[dict[str, Any]] = params
        name = column
        if column in ID_COLUMNS:
            rows = identity
        elif column.startswith(ENV):
            rows, name = environment, column.removeprefix(ENV)
        elif column in schema.METRIC_BY_NAME or (
            column not in schema.PARAM_BY_NAME and column not in param_columns and table[column].dtype == "float64"
        ):
            rows = metrics
        values, tracked = table[column].tolist(), table[column].notna().tolist()
        for row, value, is_tracked in zip(rows, values, tracked, strict=True):
            if is_tracked:
                row[name] = value
    return Runs(
        Run(
            **{"run_id": "", **fields, "warnings": lines_of(fields.get("warnings", ""))},
            params=conditions,
            metrics=numbers,
            environment=facts,
        )
        for fields, conditions, numbers, facts in zip(identity, params, metrics, environment, strict=True)
    )


def _with_times(table: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    times = {}
    for name in _TIMES:
        if name in table.columns and not isinstance(table[name].dtype, pd.DatetimeTZDtype):
            try:
                # The offset is lost in some formats: times are UTC.
                times[name] = pd.to_datetime(table[name], utc=True, format="ISO8601")
            except (ValueError, TypeError) as error:
                raise UsageError(f"the column {name} has a value that is not a time: {error}") from error
    return table.assign(**times)


def lines_of(text: str) -> tuple[str, ...]:
    """Return the non-blank lines of a text."""
    return tuple(filter(None, map(str.strip, text.splitlines())))


def column_names(runs: Sequence[Run]) -> list[str]:
    """Return the column names of runs; see `frame_of`."""
    params = set[str]().union(*(run.params for run in runs))
    metrics = set[str]().union(*(run.metrics for run in runs))
    facts = set[str]().union(*(run.environment for run in runs))
    return [
        *ID_COLUMNS,
        *_known_first(params, schema.PARAM_BY_NAME),
        *_known_first(metrics, schema.METRIC_BY_NAME),
        *(ENV + name for name in sorted(facts)),
    ]


def pick(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Select columns of a table.

    Raises:
        UsageError: a column does not exist; the message suggests close matches.
    """
    check_columns(columns, list(map(str, table.columns)))
    return table[list(columns)]


def check_columns(columns: Sequence[str], known: Sequence[str]) -> None:
    """Validate column names.

    Raises:
        UsageError: one does not exist; the message suggests close matches.
    """
    unknown = [name for name in columns if name not in known]
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, n=4, cutoff=0.6)
        near += [name for name in known if unknown[0].lower() in name.lower() and name not in near][:4]
        if near:
            hint = f"did you mean {', '.join(near)}?"
        elif len(known) <= _MOST_LISTED:
            hint = f"choose from {', '.join(known)}"
        else:
            hint = "`llmtrack runs --format csv` shows all of them"
        raise UsageError(f"there is no column {unknown[0]!r}: {hint}")


def _identity(runs: Sequence[Run], name: str, dtype: str) -> Any:
    import pandas as pd

    values = list(map(attrgetter(name), runs))
    if dtype.startswith("datetime"):
        return pd.Series(pd.to_datetime(values, utc=True), dtype=dtype).array
    if name == "warnings":
        values = ["\n".join(lines) for lines in values]
    return _array([None if value == "" else value for value in values], dtype)


def _typed(values: list[Any], kind: type | None) -> tuple[list[Any], str]:
    """Convert values to a common type and its dtype: the known kind if all fit, else the narrowest that fits."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return values, _DTYPE_OF_KIND[kind or int]
    if kind in kinds and len(kinds) == 1:
        return values, _DTYPE_OF_KIND[kind]
    if kinds <= {int, float}:
        return values, "Int64" if kinds == {int} and kind is not float else "float64"
    if kinds == {bool}:
        return values, "boolean"
    return [None if value is None else str(value) for value in values], TEXT


def _array(values: list[Any], dtype: str) -> Any:
    import numpy as np
    import pandas as pd

    return np.array(values, dtype) if dtype == "float64" else pd.array(values, dtype)  # type: ignore[call-overload]


def _known_first(names: Collection[str], known: Iterable[str]) -> list[str]:
    """Return all known names in their order, then the others sorted."""
    first = list(known)
    return first + sorted(set(names).difference(first))
