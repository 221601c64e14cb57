"""Read the raw samples of a tracked run back: what its medians and intervals were computed from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking.texts import artifact_text

if TYPE_CHECKING:
    import pandas as pd


def raw_samples(run_id: str, tracking_uri: str | None = None) -> dict[str, tuple[float, ...]]:
    """Return the samples of each metric in the order they were taken; empty if the run has none.

    Args:
        run_id: MLflow run id of a scenario.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        UsageError: the artifact `samples.json` is not what llmtrack writes.
        TrackingError: there is no store.
    """
    text = artifact_text(run_id, "samples.json", tracking_uri)
    if not text:
        return {}
    try:
        samples = json.loads(text)["samples"]
        return {str(metric): tuple(map(float, values)) for metric, values in samples.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"samples.json of run {run_id} cannot be read ({type(error).__name__})") from error


def measurements(run_id: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """Return the raw samples of a run, one row each.

    Args:
        run_id: MLflow run id of a scenario.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Returns:
        Columns `metric` (string), `unit` (string, as in docs/metrics.md), `repeat` (Int64, from 1 in the order
        they were taken), `value` (float64, in that unit). No rows if the run has no raw samples, as a perplexity,
        which is scored once.

    Raises:
        UsageError: the artifact `samples.json` is not what llmtrack writes.
        TrackingError: there is no store.
    """
    import pandas as pd

    rows = [
        (
            metric,
            schema.METRIC_BY_NAME[metric].unit if metric in schema.METRIC_BY_NAME else "-",
            number,
            value,
        )
        for metric, values in raw_samples(run_id, tracking_uri).items()
        for number, value in enumerate(values, start=1)
    ]
    dtypes = {"metric": "string", "unit": "string", "repeat": "Int64", "value": "float64"}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)
