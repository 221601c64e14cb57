"""Turn MLflow runs into a typed table."""

from __future__ import annotations

import difflib
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking import spreads

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
    "question": "llmtrack.question",
    "asked": schema.ASKED_TAG,
    "scenario_id": "llmtrack.scenario_id",
    "workload_id": "llmtrack.workload_id",
    "environment_id": "llmtrack.environment_id",
}

# Column to dtype, in order.
ID_COLUMNS: dict[str, str] = {
    "run_id": "string",
    "run_name": "string",
    "status": "string",
    "kind": "string",
    "experiment": "string",
    "study_id": "string",
    "mlflow_experiment": "string",
    "outcome": "string",
    "failure": "string",
    "reason": "string",
    "warnings": "string",
    "same_as": "string",
    "baseline": "boolean",
    "start_time": "datetime64[ms, UTC]",
    "end_time": "datetime64[ms, UTC]",
    "suite_id": "string",
    "question": "string",
    "asked": "string",
    "scenario_id": "string",
    "workload_id": "string",
    "environment_id": "string",
}

_DTYPE_OF_KIND = {str: "string", int: "Int64", float: "float64", bool: "boolean"}
# Attribute of the table that names its columns of params: one that no table knows may look like a metric.
PARAMS = "llmtrack.params"


class FrameBuilder:
    """Turns runs into a typed table as they arrive; keeps their values by column and not the runs.

    A text that many runs share is kept once.
    """

    def __init__(self, experiment_names: Mapping[str, str]) -> None:
        """Begin a table; `experiment_names` maps an MLflow experiment's id to its name."""
        self._experiment_names = experiment_names
        self._run_ids: set[str] = set()
        self._texts: dict[str, str] = {}
        self._ids: dict[str, list[Any]] = {name: [] for name in ID_COLUMNS}
        self._params: dict[str, list[str | None]] = {}
        self._metrics: dict[str, array[float]] = {}
        self._facts: dict[str, list[str | None]] = {}

    def __len__(self) -> int:
        return len(self._run_ids)

    def add(self, run: Run) -> None:
        """Add a run, unless it is there already."""
        row = len(self._run_ids)
        self._run_ids.add(run.info.run_id)
        if len(self._run_ids) == row:
            return
        for name, value in self._id_values(run).items():
            self._ids[name].append(value)
        for key, text in run.data.params.items():
            self._put(self._params, key, row, text)
        # Older versions have the spread among the metrics.
        for key, number in {**run.data.metrics, **spreads.joined(run.data.tags)}.items():
            # The last value of a series says nothing of the run as a whole.
            if not key.startswith(schema.SERIES_PREFIX):
                column = self._metrics.setdefault(key, array("d"))
                column.extend([math.nan] * (row - len(column)))
                column.append(number)
        for key, text in run.data.tags.items():
            if key.startswith(schema.ENV_TAG_PREFIX):
                self._put(self._facts, key.removeprefix(schema.ENV_TAG_PREFIX), row, text)
            elif key.startswith(schema.DIGEST_PREFIX):
                # Older versions have it among the params.
                name = key.removeprefix(schema.DIGEST_PREFIX)
                if name not in run.data.params:
                    self._put(self._params, name, row, text)

    def frame(self) -> pd.DataFrame:
        """Return the table of all runs that were added, newest first."""
        import numpy as np
        import pandas as pd

        starts = np.array([start or 0 for start in self._ids["start_time"]], dtype=np.int64)
        order: list[int] = np.lexsort((np.array(self._ids["run_id"], dtype=str), starts))[::-1].tolist()
        columns: dict[str, Any] = {}
        for name, values in self._ids.items():
            columns[name] = _id_column(_ordered(values, order), ID_COLUMNS[name])
        for name in _known_first(self._params, schema.PARAM_BY_NAME):
            known = schema.PARAM_BY_NAME.get(name)
            taken = name in ID_COLUMNS or name in schema.METRIC_BY_NAME
            texts = _ordered(self._params.get(name, []), order)
            columns[f"params.{name}" if taken else name] = _typed(texts, known.kind if known else None)
        params = tuple(name for name in columns if name not in ID_COLUMNS)
        for name in _known_first(self._metrics, schema.METRIC_BY_NAME):
            numbers = np.full(len(order), np.nan)
            numbers[: len(self._metrics.get(name, ()))] = self._metrics.get(name, ())
            column = f"metrics.{name}" if name in columns else name
            columns[column] = pd.Series(numbers[order], dtype="float64")
        for name in sorted(self._facts):
            columns[f"env.{name}"] = pd.Series(_ordered(self._facts[name], order), dtype="string")
        table = pd.DataFrame(columns)
        table.attrs[PARAMS] = params
        return table

    def _put(self, columns: dict[str, list[str | None]], key: str, row: int, text: str) -> None:
        column = columns.setdefault(key, [])
        column.extend([None] * (row - len(column)))
        column.append(self._texts.setdefault(text, text))

    def _id_values(self, run: Run) -> dict[str, Any]:
        tags, info = run.data.tags, run.info
        texts = {name: tags.get(tag) for name, tag in _TAG_COLUMNS.items()}
        texts |= {
            "run_id": info.run_id,
            "run_name": info.run_name,
            "status": info.status,
            "mlflow_experiment": self._experiment_names.get(info.experiment_id),
        }
        shared = {name: text and self._texts.setdefault(text, text) for name, text in texts.items()}
        baseline = tags.get("llmtrack.baseline")
        return shared | {
            "baseline": None if baseline is None else baseline == "true",
            "start_time": info.start_time,
            "end_time": info.end_time,
        }


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


def _ordered(values: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Return values in an order of rows; the rows behind the last value have none."""
    return [values[row] if row < len(values) else None for row in order]


def _id_column(values: list[Any], dtype: str) -> pd.Series:
    import pandas as pd

    if dtype.startswith("datetime"):
        return pd.Series(pd.to_datetime(values, unit="ms", utc=True), dtype=dtype)
    return pd.Series(values, dtype=dtype)


def _known_first(found: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the known names in their order, then the others that were found, sorted."""
    first = list(known)
    return first + sorted(set(found) - set(first))


def _typed(texts: Sequence[str | None], kind: type | None) -> pd.Series:
    """Return a column of the kind or, if that is unknown or wrong, of the narrowest that fits all values."""
    import pandas as pd

    different = set(texts)
    for candidate in (kind,) if kind is str else (kind, int, float, bool):
        if candidate is None:
            continue
        try:
            # Thousands of runs share a few values.
            parsed = {
                text: None if _is_missing(text, candidate) else _parse(text, candidate) for text in different
            }
            return pd.Series([parsed[text] for text in texts], dtype=_DTYPE_OF_KIND[candidate])
        except (ValueError, OverflowError):
            continue
    return pd.Series(list(texts), dtype="string")


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
