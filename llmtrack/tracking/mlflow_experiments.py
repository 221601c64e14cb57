"""Find and create the MLflow experiments of a store."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact
from llmtrack.spec.serialization import digest
from llmtrack.tracking.store_errors import one_line_errors
from llmtrack.tracking.uri import sqlite_path

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_EXPERIMENT = "llmtrack"


def ensure_experiment(client: MlflowClient, name: str) -> str:
    """Return the id of an MLflow experiment, creating it if missing.

    A new experiment of a sqlite database stores its artifacts in `mlartifacts` beside the database; MLflow's default
    would be the working directory of the first process.

    Raises:
        TrackingError: an experiment of that name was deleted.
        mlflow.MlflowException: the store failed.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=_artifact_location(client, name))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(name)  # Another process created it.
    if experiment is None or experiment.lifecycle_stage == "deleted":
        number = experiment.experiment_id if experiment else "ID"
        raise TrackingError(
            f"experiment {name!r} was deleted in MLflow: restore it with "
            f"`mlflow experiments restore --experiment-id {number}` or use another name"
        )
    return experiment.experiment_id


def default_experiment(client: MlflowClient) -> str:
    """Name the MLflow experiment to write to: from MLflow's variables, else `llmtrack`.

    Raises:
        mlflow.MlflowException: the store failed, or has no experiment with the id in MLFLOW_EXPERIMENT_ID.
    """
    name, number = os.environ.get("MLFLOW_EXPERIMENT_NAME"), os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not name and number:
        return client.get_experiment(number).name
    return name or DEFAULT_EXPERIMENT


def experiment_of_run(client: MlflowClient, run_id: str) -> tuple[str, str]:
    """Return the id and name of a run's MLflow experiment.

    Raises:
        TrackingError: there is no such run.
        mlflow.MlflowException: the store failed.
    """
    from mlflow.exceptions import MlflowException

    try:
        number = client.get_run(run_id).info.experiment_id
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise TrackingError(
            f"MLFLOW_RUN_ID={run_id} is not in {redact(client.tracking_uri)}: unset it, or set "
            "MLFLOW_TRACKING_URI to the store of that run (absolute, if it is a sqlite file)"
        ) from error
    return number, client.get_experiment(number).name


def experiment_names(client: MlflowClient) -> dict[str, str]:
    """Return the names of the active MLflow experiments by id.

    Raises:
        TrackingError: the store cannot be read.
    """
    names: dict[str, str] = {}
    token: str | None = None
    while True:
        with one_line_errors(client):
            page = client.search_experiments(max_results=1000, page_token=token)
        names.update({item.experiment_id: item.name for item in page})
        token = page.token
        if not token:
            return names


def _artifact_location(client: MlflowClient, name: str) -> str | None:
    path = sqlite_path(client.tracking_uri)
    if path is None:
        return None
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60]
    folder = path.parent / "mlartifacts" / f"{slug}-{digest([path.name, name])[:8]}"
    # MLflow also decodes plain paths: `a%20b` would become another folder.
    return folder.as_uri() if set("%?#") & set(str(folder)) else str(folder)
