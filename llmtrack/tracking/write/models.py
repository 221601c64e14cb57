"""Models in MLflow: the logged model of each measured configuration, loadable model folders, and registered versions.

A configuration is a loaded model and how it is computed: weights, backend, device, dtype, recipe, compilation, threads
and the options of backend and recipe. Its workload (prompts, batch size, a text) belongs to the runs. Within an MLflow
experiment, the same configuration, measured again, is the same logged model, linked to the metrics of all its runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.host.formatting import plural
from llmtrack.host.packages import installed_version
from llmtrack.spec.pointer import Pointer
from llmtrack.spec.scenario import QualityCheck
from llmtrack.spec.serialization import digest
from llmtrack.spec.task import GenerateTask, PerplexityTask, TrainTask
from llmtrack.tracked.run import FINISHED, MODEL_DIGESTS, Run
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.limits import MAX_RUN_NAME, NOT_IN_MODEL_NAMES, fit_limits, shorten
from llmtrack.tracking.uri import sqlite_path
from llmtrack.tracking.write.records import RunRecord, short_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.models import ModelSignature


URI_TAG = "llmtrack.model_uri"
CONFIGURATION_TAG = "llmtrack.way"

_ARTIFACT = "model"
_LOADER = "llmtrack.serving"

# MLflow's limit of a logged model's param or tag.
_MAX_VALUE = 5_000
_LOCK_WAIT_S = 60.0

_ALIAS = re.compile(r"(?!v\d+$|latest$)[A-Za-z0-9_-]{1,255}", re.IGNORECASE)
_VERSIONS_TAG = "mlflow.modelVersions"

# Params of the workload; `arithmetic` is only known if the roofline was measured.
_OF_RUN = {
    *(
        field.name
        for kind in (GenerateTask, PerplexityTask, TrainTask, QualityCheck)
        for field in dataclasses.fields(kind)
    ),
    "decoding",
    "arithmetic",
}

_DIGEST_TAGS = {
    **{name: schema.ENV_TAG_PREFIX + name for name in MODEL_DIGESTS},
    "calibration_digest": schema.DIGEST_PREFIX + "calibration_digest",
}
"""Digests of a loaded model's files, with the tags of a run that hold them."""

# Requirements by kind of model folder, in addition to llmtrack.
_REQUIREMENTS = {
    "onnx": ("onnxruntime", "onnx", "transformers", "torch", "optimum-onnx"),
    "torch": ("transformers", "torch", "safetensors"),
}

# By client: (MLflow experiment, key) to the id of the logged model, None if the store does not support them.
_known: WeakKeyDictionary[MlflowClient, dict[tuple[str, str], str | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Configuration:
    """A configuration of a model.

    Attributes:
        key: digest of its settings and of the model's files.
        name: such as `smollm2 \N{MIDDLE DOT} onnx int8-weight-only \N{MIDDLE DOT} 2 threads`.
        tags: digests of the model's files, and the key.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]


def configuration_of(record: RunRecord) -> Configuration | None:
    """Return the configuration that a run measured; None for a study, a training or a run without measurements."""
    params = record.params
    measured = record.status == FINISHED and record.tags.get("llmtrack.kind") == "scenario" and record.metrics
    if not measured or params.get("task") == "train" or "model_id" not in params:
        return None
    settings = {
        name: value
        for name, value in params.items()
        if schema.role(name) == "configuration" and name not in _OF_RUN and value is not None
    }
    digests = {
        schema.DIGEST_PREFIX + name: record.tags[key] for name, key in _DIGEST_TAGS.items() if key in record.tags
    }
    fitted = fit_limits(settings, {}, {}, digests, _configuration_name(settings))
    texts = {key: shorten(value, _MAX_VALUE) for key, value in fitted.params.items()}
    key = digest([sorted(texts.items()), sorted(digests.items())])
    return Configuration(key, fitted.run_name, texts, {**digests, CONFIGURATION_TAG: key})


def logged_model_of(client: MlflowClient, experiment_id: str, run_id: str, record: RunRecord) -> str | None:
    """Return the id of the logged model of a run's configuration, created if necessary; None without a configuration.

    Idempotent, also across processes. The run becomes the source of a new logged model.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    configuration = configuration_of(record)
    if configuration is None:
        return None
    known = _known.setdefault(client, {})
    key = experiment_id, configuration.key
    if key not in known:
        try:
            with store.user_lock("models", client.tracking_uri, experiment_id).acquire(timeout=_LOCK_WAIT_S):
                known[key] = _one_logged_model(client, experiment_id, run_id, configuration).model_id
        except Exception as error:
            if not is_unsupported(error):
                raise
            known[key] = None
    return known[key]


def is_unsupported(error: Exception) -> bool:
    """Return whether a store has no logged models: an MLflow server older than 3.0."""
    return isinstance(error, NotImplementedError) or getattr(error, "error_code", None) == "ENDPOINT_NOT_FOUND"


def lacking(client: MlflowClient) -> str:
    """Describe what a store does not support; empty if nothing.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    try:
        client.search_logged_models(["0"], max_results=1)
    except Exception as error:
        if not is_unsupported(error):
            raise
        return "it has no logged models: the Models tab and the column model_uri stay empty; MLflow 3 and newer servers have them"
    return ""


def _one_logged_model(
    client: MlflowClient, experiment_id: str, run_id: str, configuration: Configuration
) -> LoggedModel:
    """Return the oldest logged model of a configuration, and delete unfinished others of crashes and repeated requests."""
    models = _logged_models(client, experiment_id, configuration)
    if not models:
        created = client.create_logged_model(
            experiment_id,
            configuration.name,
            source_run_id=run_id,
            tags=dict(configuration.tags),
            params=dict(configuration.params),
        )
        # The lock suffices for a SQLite file, which only this machine writes; elsewhere another machine may have created one.
        local = sqlite_path(client.tracking_uri)
        models = [created] if local else _logged_models(client, experiment_id, configuration)
    oldest, *others = models
    for other in others:
        if other.status != "READY":
            client.delete_logged_model(other.model_id)
    if oldest.status != "READY":
        client.finalize_logged_model(oldest.model_id, "READY")
    return oldest


def _logged_models(client: MlflowClient, experiment_id: str, configuration: Configuration) -> list[LoggedModel]:
    text = f"tags.`{CONFIGURATION_TAG}` = '{configuration.key}'"
    models = client.search_logged_models([experiment_id], filter_string=text)
    return sorted(models, key=lambda model: (model.creation_timestamp, model.model_id))


def _configuration_name(settings: Mapping[str, Any]) -> str:
    recipe = settings.get("quantization", "none")
    engine = f"{settings.get('backend', '')} {settings.get('dtype', '') if recipe == 'none' else recipe}"
    device, threads = str(settings.get("device", "cpu")), str(settings.get("threads", ""))
    parts = [
        short_name(str(settings["model_id"])),
        engine.strip(),
        "" if settings.get("compile", "none") == "none" else "compiled",
        device if device != "cpu" else plural(int(threads), "thread") if threads.isdecimal() else "",
    ]
    return shorten(NOT_IN_MODEL_NAMES.sub("_", " \N{MIDDLE DOT} ".join(filter(None, parts))), MAX_RUN_NAME)


@contextmanager
def mlflow_model(folder: Path) -> Iterator[Mapping[str, Path]]:
    """Yield the files of an MLflow model by artifact path, valid within the context.

    Its `predict` takes prompts (a list, or a table of one column) and returns the continuations; `max_new_tokens` is a
    parameter.
    """
    import mlflow.pyfunc

    kind = "onnx" if any(folder.glob("*.onnx")) else "torch"
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch, _ARTIFACT)
        # Give the requirements explicitly: MLflow would load the model in another process to infer them.
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=_LOADER,
            data_path=str(folder),
            signature=_signature(),
            pip_requirements=_pinned(_REQUIREMENTS[kind]),
        )
        yield {
            f"{_ARTIFACT}/{path.relative_to(target).as_posix()}": path
            for path in sorted(target.rglob("*"))
            if path.is_file() and not os.path.islink(path)
        }


def save_pointer(target: Path, pointer: Pointer) -> None:
    """Write an MLflow model that points at a model, with an example input."""
    import mlflow.pyfunc

    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch, "pointer")
        data.mkdir()
        pointer.write(data)
        mlflow.pyfunc.save_model(
            str(target),
            loader_module=_LOADER,
            data_path=str(data),
            signature=_signature(),
            input_example=["Once upon a time"],
            pip_requirements=_pinned(_REQUIREMENTS.get(pointer.variant.backend, _REQUIREMENTS["torch"])),
        )


def _signature() -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    return ModelSignature(
        inputs=Schema([ColSpec(DataType.string)]),
        outputs=Schema([ColSpec(DataType.string)]),
        params=ParamSchema([ParamSpec("max_new_tokens", DataType.long, 64)]),
    )


def _pinned(packages: tuple[str, ...]) -> list[str]:
    versions = ((name, installed_version(name)) for name in packages)
    # Drop local version suffixes such as +cpu, which others cannot install.
    return [f"{name}=={version.partition('+')[0]}" for name, version in versions if version]


@dataclass(frozen=True)
class Version:
    """A version of a registered model, and the version that had its alias before; empty if none had."""

    name: str
    version: str
    alias: str
    before: str = ""

    @property
    def uri(self) -> str:
        """Its address in MLflow."""
        return f"models:/{self.name}@{self.alias}"


def name_and_alias(text: str) -> tuple[str, str]:
    """Split `NAME@alias`.

    Raises:
        UsageError: MLflow accepts no such name or alias.
    """
    name, sign, alias = text.rpartition("@")
    if not sign or not name.strip() or NOT_IN_MODEL_NAMES.search(name) or not _ALIAS.fullmatch(alias):
        raise UsageError(
            f"{text!r} is not a version: write NAME@alias, such as smollm2@champion; NAME without / : . % and quotes, "
            "alias of letters, digits, _ and -"
        )
    return name, alias


def register(run: Run, pointer: Pointer, name: str, alias: str, tracking_uri: str | None = None) -> Version:
    """Register the configuration of a finished run as a version, once, and give it the alias, which others lose.

    The version's files are those of the run's logged model: a pointer, no copy of the model.

    Raises:
        UsageError: the run has no logged model.
        TrackingError: the store cannot be used.
    """
    if not run.model_uri:
        raise UsageError(
            f"run {run.run_id} has no logged model in MLflow (it was tracked by an older version, failed, or is a training): measure it again"
        )
    model_id = run.model_uri.removeprefix("models:/")
    client = store.open_existing(tracking_uri)
    with store_errors.one_line_errors(client), tempfile.TemporaryDirectory(prefix="llmtrack-") as scratch:
        target = Path(scratch, "model")
        save_pointer(target, pointer)
        client.log_model_artifacts(model_id, str(target))
        before = _version_with_alias(client, name, alias)
        model = client.get_logged_model(model_id)
        version = _version_of(client, name, model) or _create_version(client, name, model, run, pointer)
        client.set_registered_model_alias(name, alias, version)
    return Version(name, version, alias, before if before != version else "")


def _version_of(client: MlflowClient, name: str, model: LoggedModel) -> str:
    """Return the version of a logged model, empty if there is none; create a missing registered model."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = client.search_model_versions(f"name = '{name}'")
    return next((str(version.version) for version in versions if version.source == model.artifact_location), "")


def _create_version(client: MlflowClient, name: str, model: LoggedModel, run: Run, pointer: Pointer) -> str:
    """Create a version, and tag the logged model with it for the Models tab, as `mlflow.register_model` does."""
    # Given the URI of the logged model, MLflow would look for it in its globally set store; given the id, a server accepts
    # files that are not the run's.
    version = client.create_model_version(
        name,
        model.artifact_location,
        run_id=run.run_id,
        tags={**pointer.digests, URI_TAG: run.model_uri},
        model_id=model.model_id,
    )
    known = json.loads(model.tags.get(_VERSIONS_TAG, "[]"))
    versions = [*known, {"name": name, "version": str(version.version)}]
    client.set_logged_model_tags(model.model_id, {_VERSIONS_TAG: json.dumps(versions)})
    return str(version.version)


def _version_with_alias(client: MlflowClient, name: str, alias: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return str(client.get_model_version_by_alias(name, alias).version)
    except MlflowException:
        return ""
