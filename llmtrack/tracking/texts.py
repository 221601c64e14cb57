"""Read a text artifact of a tracked run back, such as the text that a model generated."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from llmtrack.tracking import store


def artifact_text(run_id: str, path: str, tracking_uri: str | None = None) -> str:
    """Return a text artifact; empty if the run has none of that path, or it cannot be fetched.

    Args:
        run_id: MLflow run id.
        path: such as `sample.txt`.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        TrackingError: there is no store.
    """
    from mlflow.exceptions import MlflowException

    # A bar for a file of a few lines would fill the output.
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    with tempfile.TemporaryDirectory() as folder:
        try:
            # Asked for first: fetching what is not there takes MLflow several tries.
            if path not in {each.path for each in client.list_artifacts(run_id)}:
                return ""
            return Path(client.download_artifacts(run_id, path, folder)).read_text("utf-8", errors="replace")
        except (MlflowException, OSError):
            return ""
