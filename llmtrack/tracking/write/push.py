"""Write a record to MLflow exactly once, however often it is retried."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact
from llmtrack.metrics import metric, series_key
from llmtrack.spec.outcome import StepValues
from llmtrack.tracked.run import RUNNING
from llmtrack.tracking import packed
from llmtrack.tracking.limits import Fitted, fit_limits
from llmtrack.tracking.store_errors import is_permanent, one_line
from llmtrack.tracking.write import datasets, models, traces
from llmtrack.tracking.write.datasets import DataSet
from llmtrack.tracking.write.files import safe_path
from llmtrack.tracking.write.records import RunRecord
from llmtrack.tracking.write.spool import Entry

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run

# MLflow rejects requests over 1 MB, which may also carry up to 1,000 metrics.
_MAX_REQUEST = 600_000

_RECORD_ID = "llmtrack.record_id"


class ArtifactsError(TrackingError):
    """The numbers of a record are in MLflow, in the run `run_id`, but not its files."""

    def __init__(self, run_id: str, reason: str) -> None:
        super().__init__(f"its files could not be stored: {reason}")
        self.run_id = run_id


def push(
    client: MlflowClient,
    experiment_id: str,
    entry: Entry,
    files: Path | None,
    progress: Callable[[Entry], None],
) -> str:
    """Write an entry's record to its run, which is found or created; return the run id.

    Every step is idempotent: MLflow merges equal params and metrics, and a run that may have been created before is
    looked up by the record's id first.

    Args:
        experiment_id: where a new run is created.
        files: folder of the artifacts beside the record's texts, or None.
        progress: called with the updated entry before each step, to persist it.

    Raises:
        mlflow.MlflowException: the store failed; retry with the entry last passed to `progress`.
        ArtifactsError: only the files are missing.
    """
    run = _with_run(client, experiment_id, entry, progress)
    run_id = run.info.run_id
    record = entry.record
    model_id = models.logged_model_of(client, experiment_id, run_id, record)
    fitted = _fit(record, model_id)
    corpus = datasets.corpus_of(fitted.params, record.tags)
    _log_values(client, run, record, fitted, model_id, corpus)
    # A record kept by an older version has no inputs.
    _log_inputs(client, run_id, model_id, record.inputs or filter(None, [corpus]))
    try:
        traces.log(client, experiment_id, run_id, model_id, record)
        _log_artifacts(client, run, record, files)
    except Exception as error:
        raise ArtifactsError(run_id, one_line(error)) from error
    finally:
        # If only the artifacts fail, the run is otherwise complete; the next attempt adds them.
        if record.status != RUNNING:
            client.set_terminated(run_id, status=record.status, end_time=record.end_ms)
    if record.status != RUNNING:
        for key in packed.WHILE_RUNNING & set(run.data.tags):
            client.delete_tag(run_id, key)
    return run_id


def push_steps(client: MlflowClient, run_id: str, rows: Iterable[StepValues]) -> None:
    """Write steps to a run in requests of up to 1,000 values; repeated steps are merged.

    Raises:
        mlflow.MlflowException: the store failed; some values may be written.
    """
    client.log_batch(run_id, metrics=_step_metrics(rows), synchronous=True)


def reopen(client: MlflowClient, run_id: str) -> None:
    """Set a finished run back to RUNNING and remove its outcome.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    client.update_run(run_id, status=RUNNING)
    for tag in {"llmtrack.outcome", "llmtrack.failure", "llmtrack.reason"} & set(client.get_run(run_id).data.tags):
        client.delete_tag(run_id, tag)


def _step_metrics(rows: Iterable[StepValues]) -> list[Metric]:
    """Return MLflow metrics with the times of the steps, so that MLflow merges repeated ones."""
    from mlflow.entities import Metric

    return [
        Metric(series_key(name), value, round(1000 * row.at), row.step)
        for row in rows
        for name, value in row.values.items()
        if math.isfinite(value)
    ]


def redacted(record: RunRecord, secrets: tuple[str, ...]) -> RunRecord:
    """Return the record with credentials removed from all texts."""

    def clean(texts: Mapping[str, str]) -> dict[str, str]:
        return {key: redact(str(text), secrets) for key, text in texts.items()}

    params = {k: redact(v, secrets) if isinstance(v, str) else v for k, v in record.params.items()}
    return dataclasses.replace(
        record,
        run_name=redact(record.run_name, secrets),
        params=params,
        tags=clean(record.tags),
        texts=clean(record.texts),
        inputs=tuple(
            dataclasses.replace(dataset, name=redact(dataset.name, secrets), source=redact(dataset.source, secrets))
            for dataset in record.inputs
        ),
        generations=tuple(
            dataclasses.replace(gen, prompt=redact(gen.prompt, secrets), text=redact(gen.text, secrets))
            for gen in record.generations
        ),
    )


def _with_run(client: MlflowClient, experiment_id: str, entry: Entry, progress: Callable[[Entry], None]) -> Run:
    """Find or create the run of an entry; return it as it was before."""
    from mlflow.exceptions import MlflowException

    run: Run | None = None
    if entry.run_id is not None:
        try:
            run = client.get_run(entry.run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            entry = dataclasses.replace(entry, run_id=None, attempted=True)
    if run is None and entry.attempted:
        run = _find(client, experiment_id, entry.record.record_id)
    if run is None:
        progress(dataclasses.replace(entry, attempted=True))
        run = _create(client, experiment_id, entry.record)
        entry = dataclasses.replace(entry, attempted=True)
    progress(dataclasses.replace(entry, run_id=run.info.run_id))
    return run


def _find(client: MlflowClient, experiment_id: str, record_id: str) -> Run | None:
    """Return the run of a record; if retries left several, keep one and delete the rest."""
    runs = list(client.search_runs([experiment_id], f"tags.`{_RECORD_ID}` = '{record_id}'"))
    # Prefer the one with params; break ties deterministically, so that all processes keep the same one.
    runs.sort(key=lambda run: (-len(run.data.params), run.info.run_id))
    for duplicate in runs[1:]:
        client.delete_run(duplicate.info.run_id)
    return runs[0] if runs else None


def _create(client: MlflowClient, experiment_id: str, record: RunRecord) -> Run:
    fitted = _fit(record)
    # Set the tags that runs are searched by on creation.
    searched = ("llmtrack.kind", "llmtrack.experiment", "llmtrack.study_id", _RECORD_ID)
    tags = {key: fitted.tags[key] for key in searched if key in fitted.tags}
    run = client.create_run(
        experiment_id, start_time=record.start_ms, tags={**tags, **_author_tags()}, run_name=fitted.run_name
    )
    if int(os.environ.get("MLFLOW_HTTP_REQUEST_MAX_RETRIES") or 0) and client.tracking_uri.startswith("http"):
        # MLflow retries when the response is lost, which creates a second run.
        return _find(client, experiment_id, record.record_id) or run
    return run


def _fit(record: RunRecord, model_id: str | None = None) -> Fitted:
    uri = {models.URI_TAG: f"models:/{model_id}"} if model_id else {}
    tags = packed.pack({**record.tags, **uri, _RECORD_ID: record.record_id}, running=record.status == RUNNING)
    return fit_limits(record.params, record.metrics, record.series, tags, record.run_name)


def _log_values(
    client: MlflowClient,
    run: Run,
    record: RunRecord,
    fitted: Fitted,
    model_id: str | None,
    corpus: DataSet | None,
) -> None:
    """Log metrics, and the params and tags that the run did not have: MLflow takes as long for those as for new ones."""
    from mlflow.entities import Metric, Param, RunTag

    run_id = run.info.run_id
    stamp = record.end_ms or record.start_ms
    # Series stay with their run: MLflow reads all values of a logged model wherever it lists it.
    metrics = [
        Metric(
            key, value, stamp, 0, model_id, *(corpus.identity if corpus and _of_corpus(key, fitted) else (None, None))
        )
        for key, value in fitted.metrics.items()
    ]
    metrics += [Metric(key, value, stamp, step) for key, steps in fitted.series.items() for step, value in steps]
    metrics += _step_metrics(record.steps)
    params = [Param(key, value) for key, value in fitted.params.items() if run.data.params.get(key) != value]
    tags = [RunTag(key, value) for key, value in fitted.tags.items() if run.data.tags.get(key) != value]
    if _size(fitted.params) + _size(fitted.tags) > _MAX_REQUEST:
        for param in params:
            client.log_batch(run_id, params=[param], synchronous=True)
        for tag in tags:
            client.log_batch(run_id, tags=[tag], synchronous=True)
        params, tags = [], []
    client.log_batch(run_id, metrics=metrics, params=params, tags=tags, synchronous=True)


def _log_inputs(client: MlflowClient, run_id: str, model_id: str | None, data_sets: Iterable[DataSet]) -> None:
    """Log the logged model and the data sets that a run used; MLflow keeps one use of each per run."""
    from mlflow.entities import LoggedModelInput

    inputs = list(map(datasets.entity, data_sets))
    models = [LoggedModelInput(model_id)] if model_id else []
    # MLflow checks for a data set before it creates it: of two concurrent writers one is refused, and succeeds on a retry.
    for retries in range(len(inputs), -1, -1):
        try:
            if inputs or models:
                client.log_inputs(run_id, inputs, models)
            return
        except Exception as error:
            if not retries or not is_permanent(error):
                raise


def _of_corpus(key: str, fitted: Fitted) -> bool:
    """Return whether a metric describes the run's corpus, and not what was generated beside it."""
    return fitted.params.get("task") == "perplexity" or metric(key).of_text or key.startswith("score_")


def _size(texts: Mapping[str, str]) -> int:
    """Return the bytes of texts in a request, which escapes non-ASCII characters."""
    return sum(len(json.dumps(key)) + len(json.dumps(value)) for key, value in texts.items())


def _log_artifacts(client: MlflowClient, run: Run, record: RunRecord, files: Path | None) -> None:
    # Written once, when the run has ended.
    texts = {**({} if record.status == RUNNING else packed.artifact(record.tags)), **record.texts}
    if texts:
        with tempfile.TemporaryDirectory(prefix="llmtrack-") as folder:
            for name, text in texts.items():
                path = Path(folder) / safe_path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8", errors="replace")
            _upload(client, run, folder)
    if files is not None and files.is_dir():
        _upload(client, run, str(files))


def _upload(client: MlflowClient, run: Run, folder: str) -> None:
    """Store a folder's files with a run; MLflow's client would request the run once more."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(run.info.artifact_uri, tracking_uri=client.tracking_uri).log_artifacts(folder)


def _author_tags() -> dict[str, str]:
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):
        return {}
    return {"mlflow.user": user, "mlflow.source.name": "llmtrack", "mlflow.source.type": "LOCAL"}


def now_ms() -> int:
    """Return milliseconds since the epoch."""
    return round(1000 * time.time())
