"""Read a tracked series back: the values of a metric that has one per step."""

from __future__ import annotations

from llmtrack import metrics as schema
from llmtrack.tracking import store


def series(run_id: str, name: str, tracking_uri: str | None = None) -> list[float]:
    """Return the values of a run's series by step; empty if there is no such run or series.

    Args:
        run_id: MLflow run id.
        name: name of the series without its prefix, such as `token_latency_ms`.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        TrackingError: the store cannot be read.
    """
    from mlflow.exceptions import MlflowException

    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    try:
        history = client.get_metric_history(run_id, schema.series_key(name))
    except MlflowException as error:
        raise store.unreadable(client, error) from error
    return [entry.value for entry in sorted(history, key=lambda entry: entry.step)]
