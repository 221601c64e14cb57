"""Write to an existing run: the report of a finished study, or why `mlflow run` measured nothing."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact, secrets_of
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.limits import MAX_TAG_VALUE, shorten
from llmtrack.tracking.write.files import clean_content, safe_path
from llmtrack.tracking.write.push import now_ms

_WARNINGS = "llmtrack.warnings"


def add_report(
    run_id: str,
    note: str,
    files: Mapping[str, Path],
    warnings: Sequence[str] = (),
    tracking_uri: str | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Replace the note, files and metrics of a report on a study's run.

    Args:
        note: Markdown for its page; empty to keep the current one.
        files: artifact path to file.
        warnings: failed parts of the report, replacing earlier ones.

    Raises:
        TrackingError: the store cannot be written.
    """
    from mlflow.entities import Metric

    client = store.open_existing(tracking_uri)
    secrets = secrets_of(os.environ)
    tags = {"mlflow.note.content": note, _WARNINGS: "\n".join(warnings)}
    try:
        for key, text in tags.items():
            if text:
                client.set_tag(run_id, key, shorten(redact(text, secrets), MAX_TAG_VALUE))
        stamp = now_ms()
        client.log_batch(run_id, [Metric(key, value, stamp, 0) for key, value in (metrics or {}).items()])
        if not warnings and _WARNINGS in client.get_run(run_id).data.tags:
            client.delete_tag(run_id, _WARNINGS)
        with tempfile.TemporaryDirectory(prefix="llmtrack-") as folder:
            for name, path in files.items():
                target = Path(folder, safe_path(name))
                target.parent.mkdir(parents=True, exist_ok=True)
                content = clean_content(path, secrets)
                target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
            client.log_artifacts(run_id, folder)
    except Exception as error:
        raise TrackingError(f"cannot write the report to run {run_id}: {store_errors.one_line(error)}") from error


def explain_refusal(reason: str) -> None:
    """Write the reason, which is also printed, into the run created by `mlflow run` unless a study has joined it."""
    run_id = os.environ.get("MLFLOW_RUN_ID")
    if not run_id:
        return
    with contextlib.suppress(Exception):  # it is printed anyway
        client = store.open_existing()
        run = client.get_run(run_id)
        text = shorten(redact(reason, secrets_of(os.environ)), MAX_TAG_VALUE)
        tags = {"llmtrack.outcome": "failed", "llmtrack.reason": text, "mlflow.note.content": text}
        if entry_point := run.data.tags.get("mlflow.project.entryPoint"):
            tags["mlflow.runName"] = f"{entry_point} (refused)"
        for key, value in tags.items():
            client.set_tag(run_id, key, value)
