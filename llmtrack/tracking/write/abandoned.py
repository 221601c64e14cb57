"""End the runs of processes that were killed before they could end them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from llmtrack.tracked.run import KILLED
from llmtrack.tracking import store
from llmtrack.tracking.owner import REASON, TAG, host_id, is_gone
from llmtrack.tracking.read.paging import read_pages

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


def close_abandoned(tracking_uri: str | None = None) -> list[str]:
    """End the RUNNING runs whose process ran on this machine and is gone; return their names.

    Runs of other or unknown machines are left alone.

    Args:
        tracking_uri: the store.

    Raises:
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    wanted = f"attributes.status = 'RUNNING' and tags.`{TAG}` LIKE '{host_id()} %'"
    found: dict[str, Run] = {}
    for page in read_pages(client, list(store.experiment_names(client)), wanted):
        found |= {run.info.run_id: run for run in page if is_gone(run.data.tags[TAG])}
    for run_id in found:
        _close(client, run_id)
    return sorted(run.info.run_name or run_id for run_id, run in found.items())


def _close(client: MlflowClient, run_id: str) -> None:
    client.set_tag(run_id, "llmtrack.outcome", "killed")
    client.set_tag(run_id, "llmtrack.reason", REASON)
    client.set_terminated(run_id, KILLED, end_time=round(time.time() * 1000))
