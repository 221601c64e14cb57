"""Tracked runs made by hand, with the columns and dtypes that `llmtrack.runs` returns."""

from __future__ import annotations

from functools import cache
from typing import Any

import pandas as pd

from llmtrack import metrics as schema
from llmtrack.tracking.frame import ID_COLUMNS, TEXT

KINDS = {str: TEXT, int: "Int64", float: "float64", bool: "boolean"}

DEFAULTS: dict[str, Any] = {
    "status": "FINISHED",
    "kind": "scenario",
    "experiment": "precision",
    "study_id": "precision-1",
    "outcome": "finished",
    "baseline": False,
    "model_id": "packaged:smollm2",
    "device": "cpu",
    "dtype": "float32",
    "backend": "torch",
    "quantization": "none",
    "use_cache": True,
    "padding_side": "left",
    "batch_size": 1,
    "prompt_tokens": 16,
    "prompt_tokens_total": 16,
    "max_new_tokens": 32,
    "start_time": "2026-11-28T10:00:00Z",
    "end_time": "2026-11-28T10:01:00Z",
}


def run(scenario: str, **values: Any) -> dict[str, Any]:
    return {**DEFAULTS, "scenario": scenario, "run_name": scenario, "run_id": f"id-{scenario}", **values}


def interval(metric: str, value: float, low: float, high: float, n: int = 5) -> dict[str, float]:
    """A metric with its 95 % interval."""
    spread = {"ci_low": low, "ci_high": high, "n": float(n)}
    return {metric: value, **{schema.spread_key(metric, stat): each for stat, each in spread.items()}}


def frame(*rows: dict[str, Any]) -> pd.DataFrame:
    given = dict.fromkeys(name for row in rows for name in row)
    found = _empty(len(rows), schema.PARAMS, schema.METRICS).copy()
    added = {}
    for name in given:
        values = [row.get(name) for row in rows]
        if name in ("start_time", "end_time"):
            found[name] = pd.to_datetime(pd.Series(values), utc=True).astype(found[name].dtype)
        elif name in found:
            found[name] = pd.Series(values, dtype=found[name].dtype)
        else:
            added[name] = pd.Series(values, dtype=TEXT if name.startswith("env.") else "float64")
    return pd.concat([found, pd.DataFrame(added)], axis=1) if added else found


@cache
def _empty(rows: int, params: tuple[schema.Param, ...], metrics: tuple[schema.Metric, ...]) -> pd.DataFrame:
    """So many rows without a value: to make some hundred columns takes most of the time."""
    dtypes = dict(ID_COLUMNS) | {param.name: KINDS[param.kind] for param in params}
    dtypes |= {metric.name: "float64" for metric in metrics}
    return pd.DataFrame({name: pd.Series([None] * rows, dtype=dtype) for name, dtype in dtypes.items()})
