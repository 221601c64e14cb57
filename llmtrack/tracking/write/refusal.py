"""Explain in the run created by `mlflow run` why nothing was measured."""

from __future__ import annotations

import contextlib
import os

from llmtrack.host.secrets import redact, secrets_of
from llmtrack.tracking import store
from llmtrack.tracking.limits import MAX_TAG_VALUE, shorten


def explain_refusal(reason: str) -> None:
    """Write the reason into the run created by `mlflow run`, unless a study has joined it.

    Never raises; the reason is also printed.
    """
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return
    with contextlib.suppress(Exception):
        client = store.open_existing(store.resolve_tracking_uri(None))
        run = client.get_run(run_id)
        text = shorten(redact(reason, secrets_of(os.environ)), MAX_TAG_VALUE)
        tags = {"llmtrack.outcome": "failed", "llmtrack.reason": text, "mlflow.note.content": text}
        if entry_point := run.data.tags.get("mlflow.project.entryPoint"):
            tags["mlflow.runName"] = f"{entry_point} (refused)"
        for key, value in tags.items():
            client.set_tag(run_id, key, value)
