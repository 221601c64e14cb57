"""Read the artifacts of tracked runs: raw samples, series and texts."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from llmtrack import metrics as schema
from llmtrack.errors import LlmtrackError, UsageError
from llmtrack.spec.parameter import require_text
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.read import direct
from llmtrack.tracking.read.lookup import run_of_id
from llmtrack.tracking.read.query import runs_of_id
from llmtrack.tracking.read.source import Source
from llmtrack.tracking.uri import resolve_tracking_uri

if TYPE_CHECKING:
    import pandas as pd
    from mlflow import MlflowClient

_AT_ONCE = 8
_FILE = "samples.json"


def raw_samples(run_id: str, tracking_uri: str | None = None) -> dict[str, tuple[float, ...]]:
    """Return the samples of each metric in measurement order; empty if the run has none.

    Raises:
        UsageError: the artifact `samples.json` is not in llmtrack's format.
        TrackingError: there is no store.
    """
    return samples_by_run([run_id], tracking_uri)[run_id]


def samples_by_run(
    run_ids: Sequence[str], tracking_uri: str | None = None, lenient: bool = False
) -> dict[str, dict[str, tuple[float, ...]]]:
    """Return the raw samples of several runs by id, on request without the unreadable ones; see `raw_samples`."""
    ignored = (LlmtrackError,) if lenient else ()
    samples: dict[str, dict[str, tuple[float, ...]]] = {}
    with suppress(*ignored):
        for run_id, text in zip(run_ids, artifact_texts(run_ids, _FILE, tracking_uri), strict=True):
            with suppress(*ignored):
                samples[run_id] = _samples(run_id, text)
    return samples


def _samples(run_id: str, text: str) -> dict[str, tuple[float, ...]]:
    if not text:
        return {}
    try:
        samples = json.loads(text)["samples"]
        return {str(metric): tuple(map(float, values)) for metric, values in samples.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{_FILE} of run {run_id} cannot be read ({type(error).__name__})") from error


def measurements(run_id: str, tracking_uri: str | None = None) -> pd.DataFrame:
    """Return the raw samples of a run, one row each.

    Args:
        run_id: MLflow run id of a scenario, or its first 8 characters.
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.

    Returns:
        Columns `metric` (string), `unit` (string, as in docs/metrics.md), `repeat` (Int64, from 1 in measurement
            order), `value` (float64, in that unit). Empty if the run has no raw samples, like a perplexity, which is
            scored once.

    Raises:
        UsageError: there is no such run, or its artifact `samples.json` cannot be read.
        TrackingError: there is no store.
    """
    import pandas as pd

    run = run_of_id(Source(tracking_uri), require_text("run_id", run_id))
    if run is None:
        raise UsageError(f"there is no run {run_id!r}: `llmtrack runs` lists them")
    rows = [
        (metric, schema.metric(metric).unit, number, value)
        for metric, values in raw_samples(run.run_id, tracking_uri).items()
        for number, value in enumerate(values, start=1)
    ]
    own = [] if rows else [tracked for tracked in runs_of_id(run.run_id, tracking_uri) if tracked.run_id == run.run_id]
    if any(name.startswith(schema.SPREAD_PREFIX) for tracked in own for name in tracked.metrics):
        raise UsageError(
            f"{_FILE} of run {run.run_id} cannot be read, which repeated its calls: is its folder reachable?"
        )
    dtypes = {"metric": "string", "unit": "string", "repeat": "Int64", "value": "float64"}
    return pd.DataFrame(rows, columns=list(dtypes)).astype(dtypes)


def series(run_id: str, name: str, tracking_uri: str | None = None) -> list[float]:
    """Return the values of a run's series, such as `token_latency_ms`, by step; empty without such a run or series.

    Raises:
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(tracking_uri)
    with store_errors.one_line_errors(client):
        history = client.get_metric_history(run_id, schema.series_key(name))
    return [entry.value for entry in sorted(history, key=lambda entry: entry.step)]


def artifact_text(run_id: str, path: str, tracking_uri: str | None = None) -> str:
    """Return a text artifact; empty if it is missing or unreadable; see `artifact_texts`."""
    return artifact_texts([run_id], path, tracking_uri)[0]


def artifact_texts(run_ids: Sequence[str], path: str, tracking_uri: str | None = None) -> list[str]:
    """Return a text artifact of each run, in order; empty if it is missing or unreadable.

    Raises:
        TrackingError: there is no store.
    """
    uri = resolve_tracking_uri(tracking_uri)
    roots = direct.artifact_roots(uri, run_ids)
    folders = {run_id: folder for run_id, root in (roots or {}).items() if (folder := _folder(root))}
    if roots is not None and len(folders) == len(roots):
        return [_text_in(folders[run_id], path) if run_id in folders else "" for run_id in run_ids]
    hide_progress()
    client = store.open_existing(uri)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda run_id: _download_text(client, run_id, path), run_ids))


def local_artifact(run_id: str, path: str, tracking_uri: str | None = None) -> Path | None:
    """Return the local path of an artifact, or None if it is missing or remote.

    Raises:
        TrackingError: there is no store.
    """
    client = store.open_existing(tracking_uri)
    with store_errors.one_line_errors(client):
        folder = _folder(client.get_run(run_id).info.artifact_uri)
    return folder / path if folder and (folder / path).is_file() else None


def _download_text(client: MlflowClient, run_id: str, path: str) -> str:
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory() as folder:
        try:
            # List first: MLflow retries the download of a missing file several times.
            if path not in {artifact.path for artifact in client.list_artifacts(run_id)}:
                return ""
            client.download_artifacts(run_id, path, folder)
        except (MlflowException, OSError):
            return ""
        return _text_in(Path(folder), path)


def _text_in(folder: Path, path: str) -> str:
    try:
        return (folder / path).read_text("utf-8", errors="replace")
    except OSError:
        return ""


def _folder(artifact_uri: str) -> Path | None:
    root = urlsplit(artifact_uri)
    if root.scheme not in ("", "file"):
        return None
    # Like MLflow, which also decodes a plain path.
    return Path(url2pathname(root.path if root.scheme else artifact_uri))


def hide_progress() -> None:
    """Suppress MLflow's progress bar, which it would show for a few small files."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
