"""Register the way that a run measured as a version of a model in MLflow's registry, with an alias of MLflow's."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.spec.pointer import Pointer
from llmtrack.tracked.run import Run
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.limits import NOT_IN_MODEL_NAMES
from llmtrack.tracking.write.logged_models import URI_TAG
from llmtrack.tracking.write.mlmodel import save_pointer

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

_ALIAS = re.compile(r"(?!v\d+$|latest$)[A-Za-z0-9_-]{1,255}", re.IGNORECASE)
_VERSIONS_TAG = "mlflow.modelVersions"


@dataclass(frozen=True)
class Version:
    """A version of a registered model, and what had its alias before: empty if nothing did."""

    name: str
    version: str
    alias: str
    before: str = ""

    @property
    def uri(self) -> str:
        """Where MLflow finds it."""
        return f"models:/{self.name}@{self.alias}"


def name_and_alias(text: str) -> tuple[str, str]:
    """Return both parts of `NAME@alias`.

    Raises:
        UsageError: MLflow accepts no such name or alias.
    """
    name, sign, alias = text.rpartition("@")
    if not sign or not name.strip() or NOT_IN_MODEL_NAMES.search(name) or not _ALIAS.fullmatch(alias):
        raise UsageError(
            f"{text!r} names no version: write NAME@alias, such as smollm2@champion; a name has none of / : . % and quotes, "
            "an alias letters, digits, _ and -"
        )
    return name, alias


def register(run: Run, pointer: Pointer, name: str, alias: str, tracking_uri: str | None = None) -> Version:
    """Register a run's way as a version, once, and give that the alias.

    Its files point at the model, of which nothing is copied, and are those of the run's logged model.

    Args:
        run: a finished run of a scenario.
        pointer: what is loaded.
        name: of the registered model, created if need be.
        alias: of the version; any other version loses it.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        UsageError: the run has no logged model.
        TrackingError: the store cannot be used.
    """
    if not run.model_uri:
        raise UsageError(
            f"run {run.run_id} has no logged model in MLflow (it is of an older version, failed, or trained): measure it again"
        )
    model_id = run.model_uri.removeprefix("models:/")
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    with store_errors.asking(client), tempfile.TemporaryDirectory(prefix="llmtrack-") as scratch:
        target = Path(scratch, "model")
        save_pointer(target, pointer)
        client.log_model_artifacts(model_id, str(target))
        before = _aliased(client, name, alias)
        model = client.get_logged_model(model_id)
        version = _version_of(client, name, model) or _create(client, name, model, run, pointer)
        client.set_registered_model_alias(name, alias, version)
    return Version(name, version, alias, before if before != version else "")


def _version_of(client: MlflowClient, name: str, model: LoggedModel) -> str:
    """Return the version that stands for a logged model, empty if there is none; a new registered model is created."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    found = client.search_model_versions(f"name = '{name}'")
    return next((str(each.version) for each in found if each.source == model.artifact_location), "")


def _create(client: MlflowClient, name: str, model: LoggedModel, run: Run, pointer: Pointer) -> str:
    """Create a version; the logged model is told of it, as `mlflow.register_model` does, for the Models tab."""
    # By the logged model's own URI, MLflow would look for it in the store of its global setting; by its id, a server accepts that
    # the files are not the run's.
    made = client.create_model_version(
        name,
        model.artifact_location,
        run_id=run.run_id,
        tags={**pointer.digests, URI_TAG: run.model_uri},
        model_id=model.model_id,
    )
    known = json.loads(model.tags.get(_VERSIONS_TAG, "[]"))
    versions = [*known, {"name": name, "version": str(made.version)}]
    client.set_logged_model_tags(model.model_id, {_VERSIONS_TAG: json.dumps(versions)})
    return str(made.version)


def _aliased(client: MlflowClient, name: str, alias: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return ""
