"""Download the checkpoints of tracked runs, so that they can be loaded without MLflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.models.cache import build_once
from llmtrack.models.disk import room_for
from llmtrack.models.source import ModelSource, parse_candidates, run_entry, run_of
from llmtrack.spec.scenario import Scenario
from llmtrack.tracking import store, store_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient


def fetch_checkpoints(scenarios: Sequence[Scenario], tracking_uri: str | None = None) -> None:
    """Download every `runs:/RUN_ID/PATH` model of the scenarios into the model cache, once.

    In a list of candidates, an unavailable one is left for the loader to report.

    Args:
        tracking_uri: the store that holds the runs.

    Raises:
        UsageError: the only candidate is unavailable.
        TrackingError: the store cannot be read.
    """
    models = {scenario.variant.model for scenario in scenarios}
    models |= {each.quality.reference.model for each in scenarios if each.quality and each.quality.reference}
    for model in sorted(models):
        candidates = parse_candidates(model)
        for source in candidates:
            if source.kind == "run":
                try:
                    _fetch(source, tracking_uri)
                except (UsageError, ModelLoadError):
                    if len(candidates) == 1:
                        raise


def _fetch(source: ModelSource, tracking_uri: str | None) -> Path:
    run_id, path = run_of(source)

    def build(folder: Path) -> dict[str, Any]:
        client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
        needed = _size(client, source.spec, run_id, path)
        # Suppress MLflow's progress bar for a few files.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        downloads = folder / "download"
        downloads.mkdir()
        with room_for(folder, needed):
            try:
                fetched = Path(client.download_artifacts(run_id, path, str(downloads)))
                for file in fetched.iterdir():
                    shutil.move(str(file), folder / file.name)
            except Exception as error:  # MLflow has no common error for store, artifact server and local disk.
                raise ModelLoadError(
                    f"{source.spec}: its files cannot be fetched ({store_errors.one_line(error)}): check the run's artifacts"
                ) from error
        shutil.rmtree(downloads)
        return {"run_id": run_id, "path": path}

    return build_once(run_entry(run_id, path), build)


def _size(client: MlflowClient, spec: str, run_id: str, path: str) -> int:
    """Return the bytes of a model folder; reject a missing one at once, as MLflow would retry."""
    from mlflow.exceptions import MlflowException

    try:
        sizes = {each.path: each.file_size or 0 for each in client.list_artifacts(run_id, path)}
    except OSError as error:  # A dangling link in a file store.
        raise ModelLoadError(
            f"{spec}: its files cannot be fetched ({store_errors.one_line(error)}): check the run's artifacts"
        ) from error
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise store_errors.unreadable(client, error) from error
        raise UsageError(f"{spec}: there is no such run in this tracking store: check MLFLOW_TRACKING_URI") from error
    if f"{path}/config.json" not in sizes:
        raise UsageError(
            f"{spec}: the run has no model folder of that name: give the run of a training with log_checkpoint=artifact"
        )
    return sum(sizes.values())
