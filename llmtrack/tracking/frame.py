"""Turn MLflow runs into a typed table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack.tracking import schema

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
    "scenario_id": "string",
    "workload_id": "string",
    "environment_id": "string",
}

_DTYPE_OF_KIND = {str: "string", int: "Int64", float: "float64", bool: "boolean"}


def frame(found: Sequence[Run], experiment_names: Mapping[str, str]) -> pd.DataFrame:
    """Return MLflow runs as a typed table; `experiment_names` maps an MLflow experiment's id to its name."""
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, values in _id_values(found, experiment_names).items():
        columns[name] = pd.Series(values, dtype=ID_COLUMNS[name])
    param_names = _keys((run.data.params for run in found), schema.PARAM_BY_NAME)
    metric_names = _keys((run.data.metrics for run in found), schema.METRIC_BY_NAME)
    # The last value of a series says nothing of the run as a whole.
    metric_names = [name for name in metric_names if not name.startswith(schema.SERIES_PREFIX)]
    for name in param_names:
        known = schema.PARAM_BY_NAME.get(name)
        taken = name in ID_COLUMNS or name in schema.METRIC_BY_NAME
        texts = [run.data.params.get(name) for run in found]
        columns[f"params.{name}" if taken else name] = _typed(texts, known.kind if known else None)
    for name in metric_names:
        numbers = [run.data.metrics.get(name) for run in found]
        columns[f"metrics.{name}" if name in columns else name] = pd.Series(numbers, dtype="float64")
    for tag in _keys((run.data.tags for run in found), ()):
        if tag.startswith(schema.ENV_TAG_PREFIX):
            values = [run.data.tags.get(tag) for run in found]
            columns["env." + tag.removeprefix(schema.ENV_TAG_PREFIX)] = pd.Series(values, dtype="string")
    return pd.DataFrame(columns)


def _id_values(found: Sequence[Run], experiment_names: Mapping[str, str]) -> dict[str, list[Any]]:
    import pandas as pd

    def moment(milliseconds: int | None) -> Any:
        return pd.Timestamp(milliseconds, unit="ms", tz="UTC") if milliseconds is not None else pd.NaT

    values: dict[str, list[Any]] = {name: [] for name in ID_COLUMNS}
    for run in found:
        row: dict[str, Any] = {name: run.data.tags.get(tag) for name, tag in _TAG_COLUMNS.items()}
        baseline = run.data.tags.get("llmtrack.baseline")
        row |= {
            "run_id": run.info.run_id,
            "run_name": run.info.run_name,
            "status": run.info.status,
            "mlflow_experiment": experiment_names.get(run.info.experiment_id),
            "baseline": None if baseline is None else baseline == "true",
            "start_time": moment(run.info.start_time),
            "end_time": moment(run.info.end_time),
        }
        for name, column in values.items():
            column.append(row[name])
    return values


def _keys(mappings: Iterable[Mapping[str, Any]], first: Iterable[str]) -> list[str]:
    """Return all keys: the given ones in their order, then the rest sorted."""
    known = list(first)
    rest = {key for mapping in mappings for key in mapping} - set(known)
    return known + sorted(rest)


def _typed(texts: Sequence[str | None], kind: type | None) -> pd.Series:
    """Return a column of the kind or, if that is unknown or wrong, of the narrowest that fits all values."""
    import pandas as pd

    for candidate in (kind,) if kind is str else (kind, int, float, bool):
        if candidate is None:
            continue
        try:
            values = [None if _is_missing(text, candidate) else _parse(text, candidate) for text in texts]
            return pd.Series(values, dtype=_DTYPE_OF_KIND[candidate])
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
