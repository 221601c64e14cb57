"""Turn MLflow runs into a typed table."""

from __future__ import annotations

import difflib
import math
import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking import facts, spreads
from llmtrack.tracking.ask import KILLED, RUNNING
from llmtrack.tracking.owner import REASON, TAG, is_gone

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.entities import Run

# Column to the tag it comes from; the others come from the run itself.
_TAG_COLUMNS = {
    "kind": "llmtrack.kind",
    "experiment": "llmtrack.experiment",
    "study_id": "llmtrack.study_id",
    "suite_id": "llmtrack.suite_id",
    "outcome": "llmtrack.outcome",
    "failure": "llmtrack.failure",
    "reason": "llmtrack.reason",
    "warnings": "llmtrack.warnings",
    "same_as": "llmtrack.same_as",
    "baseline": "llmtrack.baseline",
    "question": "llmtrack.question",
    "asked": schema.ASKED_TAG,
    "scenario_id": "llmtrack.scenario_id",
    "workload_id": "llmtrack.workload_id",
    "environment_id": "llmtrack.environment_id",
}

_TAGS_WITH_COLUMN = frozenset(_TAG_COLUMNS.values())
# What comes from the run itself, beside its id, in the order of `FrameBuilder.begin`.
_INFO_COLUMNS = ("run_name", "status", "mlflow_experiment", "start_time", "end_time")

TEXT = "string[python]"
"""Dtype of texts. Runs share most of theirs, which columns of Python's own need not copy, and rows are made of in a third of the time."""

# Column to dtype, in order.
ID_COLUMNS: dict[str, str] = {
    "run_id": TEXT,
    "run_name": TEXT,
    "status": TEXT,
    "kind": TEXT,
    "experiment": TEXT,
    "study_id": TEXT,
    "mlflow_experiment": TEXT,
    "outcome": TEXT,
    "failure": TEXT,
    "reason": TEXT,
    "warnings": TEXT,
    "same_as": TEXT,
    "baseline": "boolean",
    "start_time": "datetime64[ms, UTC]",
    "end_time": "datetime64[ms, UTC]",
    "suite_id": TEXT,
    "question": TEXT,
    "asked": TEXT,
    "scenario_id": TEXT,
    "workload_id": TEXT,
    "environment_id": TEXT,
}

_DTYPE_OF_KIND = {str: TEXT, int: "Int64", float: "float64", bool: "boolean"}
# Attribute of the table that names its columns of params: one that no table knows may look like a metric.
PARAM_COLUMNS = "llmtrack.params"


class Names(tuple[str, ...]):
    """Names of columns; pandas copies what is attached to a table deeply, with each row that is taken of it."""

    def __deepcopy__(self, memo: object) -> Names:
        return self


Value = TypeVar("Value")
# Id of a run, key, and value of each.
Values = Iterable[tuple[str, str, Value]]


class FrameBuilder:
    """Turns runs into a typed table as they arrive; keeps their values by column and not the runs.

    A text is kept once, and a column holds its number: thousands of runs share a few texts, which are also read once.
    """

    def __init__(self, experiment_names: Mapping[str, str]) -> None:
        """Begin a table; `experiment_names` maps an MLflow experiment's id to its name."""
        self._experiment_names = experiment_names
        self._row_of: dict[str, int] = {}
        self._texts = _Numbered()
        self._infos: dict[str, list[Any]] = {name: [] for name in _INFO_COLUMNS}
        self._params: dict[str, array[int]] = {}
        self._tags: dict[str, array[int]] = {}
        self._metrics: dict[str, array[float]] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def run_ids(self) -> Collection[str]:
        """Ids of the runs that are there, in the order in which they came."""
        return self._row_of.keys()

    def add(self, run: Run) -> None:
        """Add a run of MLflow's, unless it is there already."""
        info, data = run.info, run.data
        if info.run_id in self._row_of:
            return
        run_id = info.run_id
        self.begin(run_id, info.run_name, info.status, info.experiment_id, info.start_time, info.end_time)
        of_run = (
            [(run_id, *item) for item in each.items()] for each in (data.params, data.metrics, data.tags)
        )
        self.put(*of_run)

    def begin(
        self,
        run_id: str,
        name: str | None,
        status: str,
        experiment_id: str,
        start_time: int | None,
        end_time: int | None,
    ) -> None:
        """Add a run that is not there yet, and has no values yet."""
        experiment = self._experiment_names.get(experiment_id)
        values = (name, status, experiment, start_time, end_time)
        for column, value in zip(self._infos.values(), values, strict=True):
            column.append(value)
        self._row_of[run_id] = len(self._row_of)

    def put(self, params: Values[str], metrics: Values[float], tags: Values[str]) -> None:
        """Put values of runs that are there; what is of another run is left out."""
        # Older versions have the spread among the metrics, and digests among the params, which then count.
        self._put_metrics(metrics)
        self._put(self._tags, self._with_column(tags))
        self._put(self._params, params)

    def _with_column(self, tags: Values[str]) -> Iterator[tuple[str, str, str]]:
        """Yield the tags that have a column, and put those that hold metrics or params."""
        for each in tags:
            run_id, key, text = each
            if key == TAG:
                yield from self._left(run_id, text)
            elif key in _TAGS_WITH_COLUMN or key.startswith(schema.ENV_TAG_PREFIX):
                yield each
            elif key == facts.TAG:
                yield from ((run_id, tag, fact) for tag, fact in facts.joined(text).items())
            elif key == spreads.TAG:
                self._put_metrics((run_id, *item) for item in spreads.joined({key: text}).items())
            elif key.startswith(schema.DIGEST_PREFIX):
                self._put(self._params, [(run_id, key.removeprefix(schema.DIGEST_PREFIX), text)])

    def _left(self, run_id: str, process: str) -> Iterator[tuple[str, str, str]]:
        """Call a run killed that its process has left RUNNING, as `close_abandoned` will, and yield the tags that say so."""
        row, status = self._row_of.get(run_id), self._infos["status"]
        if row is not None and status[row] == RUNNING and is_gone(process):
            status[row] = KILLED
            yield run_id, "llmtrack.outcome", "killed"
            yield run_id, "llmtrack.reason", REASON

    def _put_metrics(self, values: Values[float]) -> None:
        columns, row_of = self._metrics, self._row_of.get
        for run_id, key, number in values:
            if (row := row_of(run_id)) is None:
                continue
            try:
                columns[key][row] = number
            except (KeyError, IndexError):
                # The last value of a series says nothing of the run as a whole.
                if not key.startswith(schema.SERIES_PREFIX):
                    _grown(columns, key, "d", math.nan, len(self))[row] = number

    def frame(self) -> pd.DataFrame:
        """Return the table of all runs that were added, newest first."""
        import numpy as np
        import pandas as pd

        starts = np.array([start or 0 for start in self._infos["start_time"]], dtype=np.int64)
        run_ids = np.array(list(self._row_of), dtype=object)
        order = np.lexsort((run_ids.astype(str), starts))[::-1]
        texts = np.array([*self._texts, None], dtype=object)

        def column(numbers: array[int], made: Callable[[list[Any]], Any]) -> Any:
            """Return a column of texts, which is made of the different ones."""
            filled = np.full(len(order), -1)
            filled[: len(numbers)] = numbers
            different, which = np.unique(filled[order], return_inverse=True)
            return made(texts[different].tolist()).take(which)

        @cache
        def empty(dtype: str) -> Any:
            return _array([None] * len(order), dtype)

        columns: dict[str, Any] = {}
        for name, dtype in ID_COLUMNS.items():
            made = partial(_id_column, name, dtype)
            if name in _TAG_COLUMNS:
                found = self._tags.get(_TAG_COLUMNS[name])
                columns[name] = column(found, made) if found else empty(dtype)
            else:
                values = run_ids if name == "run_id" else np.array(self._infos[name], dtype=object)
                columns[name] = made(values[order].tolist())
        for name in _known_first(self._params, schema.PARAM_BY_NAME):
            known, found = schema.PARAM_BY_NAME.get(name), self._params.get(name)
            taken = name in ID_COLUMNS or name in schema.METRIC_BY_NAME
            kind = known.kind if known else None
            columns[f"params.{name}" if taken else name] = (
                column(found, partial(_typed, kind)) if found else empty(_DTYPE_OF_KIND[kind or str])
            )
        params = Names(name for name in columns if name not in ID_COLUMNS)
        for name in _known_first(self._metrics, schema.METRIC_BY_NAME):
            numbers = np.full(len(order), np.nan)
            numbers[: len(self._metrics.get(name, ()))] = self._metrics.get(name, ())
            columns[f"metrics.{name}" if name in columns else name] = numbers[order]
        for tag in sorted(self._tags):
            if tag.startswith(schema.ENV_TAG_PREFIX):
                fact = column(self._tags[tag], partial(_array, dtype=TEXT))
                columns[f"env.{tag.removeprefix(schema.ENV_TAG_PREFIX)}"] = fact
        table = pd.DataFrame(columns)
        table.attrs[PARAM_COLUMNS] = params
        return table

    def _put(self, columns: dict[str, array[int]], values: Values[str]) -> None:
        texts, row_of = self._texts, self._row_of.get
        for run_id, key, text in values:
            if (row := row_of(run_id)) is None:
                continue
            number = texts[text]
            try:
                columns[key][row] = number
            except (KeyError, IndexError):
                _grown(columns, key, "l", -1, len(self))[row] = number


class _Numbered(dict[str, int]):
    """Texts, each with the number that it was given when it was first asked for."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


def _grown(columns: dict[str, array[Any]], key: str, kind: str, missing: float, rows: int) -> array[Any]:
    """Return a column, which may not be there yet, made as long as the table is."""
    column = columns.setdefault(key, array(kind))
    column.extend([missing] * (rows - len(column)))
    return column


def extended(table: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """Return a table with further columns, or others in place of its own, put there at once: tables of runs are wide.

    Args:
        table: a table of runs.
        columns: values of each row by the column's name; a series has the table's index.
    """
    import pandas as pd

    known = {name: values for name, values in columns.items() if name in table.columns}
    added = {name: values for name, values in columns.items() if name not in known}
    wide = pd.concat([table.assign(**known), pd.DataFrame(added, index=table.index)], axis=1)
    wide.attrs = table.attrs
    return wide


def pick(table: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return some columns of a table, in their order.

    Raises:
        UsageError: there is no such column; the message names near ones.
    """
    unknown = [name for name in columns if name not in table.columns]
    if unknown:
        near = difflib.get_close_matches(unknown[0], table.columns, n=4, cutoff=0.6)
        near += [name for name in table.columns if unknown[0].lower() in name.lower() and name not in near][
            :4
        ]
        hint = (
            f"did you mean {', '.join(near)}?" if near else "`llmtrack runs --format csv` shows all of them"
        )
        raise UsageError(f"there is no column {unknown[0]!r}: {hint}")
    return table[list(columns)]


def _array(values: list[Any], dtype: Any) -> Any:
    import numpy as np
    import pandas as pd

    return np.array(values, dtype) if dtype == "float64" else pd.array(values, dtype)


def _id_column(name: str, dtype: str, values: list[Any]) -> Any:
    import pandas as pd

    if dtype.startswith("datetime"):
        return pd.Series(pd.to_datetime(values, unit="ms", utc=True), dtype=dtype).array
    if name == "baseline":
        values = [None if text is None else text == "true" for text in values]
    return _array(values, dtype)


def _known_first(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the known names in their order, then the others that were found, sorted."""
    first = list(known)
    return first + sorted(set(found) - set(first))


def _typed(kind: type | None, texts: list[str | None]) -> Any:
    """Return a column of the kind or, if that is unknown or wrong, of the narrowest that fits all values."""
    for candidate in (kind,) if kind is str else (kind, int, float, bool):
        if candidate is None:
            continue
        try:
            parsed = [None if _is_missing(text, candidate) else _parse(text, candidate) for text in texts]
            return _array(parsed, _DTYPE_OF_KIND[candidate])
        except (ValueError, OverflowError):
            continue
    return _array(texts, TEXT)


def _is_missing(text: str | None, kind: type) -> bool:
    return text is None or (kind is not str and text in ("", "None", "none"))


def _parse(text: str | None, kind: type) -> Any:
    assert text is not None
    if kind is bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise ValueError(text) from None
    if kind is int and not re.fullmatch(r"[+-]?\d{1,18}", text):
        raise ValueError(text)  # int() would also take 1_000, and a digest of digits overflows.
    return kind(text)
