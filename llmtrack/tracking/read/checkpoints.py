"""Fetch the checkpoints of tracked runs, to be loaded without MLflow."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.models.cache import build_once
from llmtrack.models.disk import room_for
from llmtrack.models.source import ModelSource, parse_candidates, parse_run
from llmtrack.spec.scenario import Scenario
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.read.artifacts import hide_progress

if TYPE_CHECKING:
    from mlflow import MlflowClient


def fetch_checkpoints(scenarios: Sequence[Scenario], tracking_uri: str | None = None) -> None:
    """Download every `runs:/RUN_ID/PATH` model of the scenarios into the model cache, once.

    In a list of candidates, an unavailable one is left for the loader to report.

    Raises:
        UsageError: the only candidate is unavailable.
        TrackingError: the store cannot be read.
    """
    models = {variant.model for scenario in scenarios for variant in scenario.variants}
    for model in sorted(models):
        candidates = parse_candidates(model)
        for source in candidates:
            if source.kind == "run":
                try:
                    _fetch_checkpoint(source, tracking_uri)
                except (UsageError, ModelLoadError):
                    if len(candidates) == 1:
                        raise


def _fetch_checkpoint(source: ModelSource, tracking_uri: str | None) -> Path:
    run_id, path = parse_run(source.spec)

    def build(folder: Path) -> dict[str, Any]:
        client = store.open_existing(tracking_uri)
        size = _checkpoint_size(client, source.spec, run_id, path)
        hide_progress()
        downloads = folder / "download"
        downloads.mkdir()
        with room_for(folder, size):
            try:
                for file in Path(client.download_artifacts(run_id, path, str(downloads))).iterdir():
                    shutil.move(str(file), folder / file.name)
            except Exception as error:  # MLflow has no common error for store, artifact server and local disk.
                raise _unfetched(source.spec, error) from error
        shutil.rmtree(downloads)
        return {"run_id": run_id, "path": path}

    return build_once(Path(source.location).name, build)


def _checkpoint_size(client: MlflowClient, spec: str, run_id: str, path: str) -> int:
    """Return the bytes of a model folder; reject a missing one at once, as MLflow would retry."""
    from mlflow.exceptions import MlflowException

    try:
        sizes = {artifact.path: artifact.file_size or 0 for artifact in client.list_artifacts(run_id, path)}
    except OSError as error:  # A dangling link in a file store.
        raise _unfetched(spec, error) from error
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise store_errors.read_error(client, error) from error
        raise UsageError(f"{spec}: there is no such run in this tracking store: check MLFLOW_TRACKING_URI") from error
    if f"{path}/config.json" not in sizes:
        raise UsageError(
            f"{spec}: the run has no model folder of that name: give the run of a training with log_checkpoint=artifact"
        )
    return sum(sizes.values())


def _unfetched(spec: str, error: Exception) -> ModelLoadError:
    reason = store_errors.one_line(error)
    return ModelLoadError(f"{spec}: its files cannot be fetched ({reason}): check the run's artifacts")
