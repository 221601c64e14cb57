"""Track each configuration of a model as an MLflow logged model, linked to the metrics of all its runs.

A configuration is a loaded model and how it is computed: weights, backend, device, dtype, recipe, compilation, threads
and the options of backend and recipe. Its workload (prompts, batch size, a text) belongs to the runs. Within an MLflow
experiment, the same configuration, measured again, is the same logged model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from llmtrack import metrics as schema
from llmtrack.host.formatting import plural
from llmtrack.spec.scenario import QualityCheck
from llmtrack.spec.serialization import digest
from llmtrack.spec.task import GenerateTask, PerplexityTask, TrainTask
from llmtrack.tracked.run import FINISHED, MODEL_DIGESTS
from llmtrack.tracking.limits import MAX_RUN_NAME, NOT_IN_MODEL_NAMES, fit_limits, shorten
from llmtrack.tracking.store import own_lock, sqlite_path
from llmtrack.tracking.write.records import RunRecord, short_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel

URI_TAG = "llmtrack.model_uri"
WAY_TAG = "llmtrack.way"

# MLflow's limit of a logged model's param or tag.
_MAX_VALUE = 5_000
_LOCK_WAIT_S = 60.0
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

# By client: (MLflow experiment, key) to the id of the logged model, None if the store does not support them.
_known: WeakKeyDictionary[MlflowClient, dict[tuple[str, str], str | None]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Way:
    """A configuration of a model.

    Attributes:
        key: digest of its settings and of the model's files.
        name: its label, such as `smollm2 \N{MIDDLE DOT} onnx int8-weight-only \N{MIDDLE DOT} 2 threads`.
        params: its settings.
        tags: digests of the model's files, and the key.
    """

    key: str
    name: str
    params: Mapping[str, str]
    tags: Mapping[str, str]


def way_of(record: RunRecord) -> Way | None:
    """Return the configuration that a run measured; None for a study, for training (its result is another model), and
    without measurements.
    """
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
    fitted = fit_limits(settings, {}, {}, digests, _name(settings))
    texts = {key: shorten(value, _MAX_VALUE) for key, value in fitted.params.items()}
    key = digest([sorted(texts.items()), sorted(digests.items())])
    return Way(key, fitted.run_name, texts, {**digests, WAY_TAG: key})


def logged_model_of(client: MlflowClient, experiment_id: str, run_id: str, record: RunRecord) -> str | None:
    """Return the id of the logged model of a run's configuration, created if necessary; None if there is none.

    Idempotent, also across processes.

    Args:
        client: client of the store.
        experiment_id: the MLflow experiment.
        run_id: the run, set as the source of a new logged model.
        record: the run's record.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    way = way_of(record)
    if way is None:
        return None
    known = _known.setdefault(client, {})
    if (experiment_id, way.key) not in known:
        try:
            with own_lock("models", client.tracking_uri, experiment_id).acquire(timeout=_LOCK_WAIT_S):
                known[experiment_id, way.key] = _settled(client, experiment_id, run_id, way).model_id
        except Exception as error:
            if not is_unknown_here(error):
                raise
            known[experiment_id, way.key] = None
    return known[experiment_id, way.key]


def is_unknown_here(error: Exception) -> bool:
    """Return whether an error means that a store has no logged models: an MLflow server older than 3.0."""
    return isinstance(error, NotImplementedError) or getattr(error, "error_code", None) == "ENDPOINT_NOT_FOUND"


def lacking(client: MlflowClient) -> str:
    """Describe what a store does not support; empty if nothing.

    Raises:
        mlflow.MlflowException: the store failed.
    """
    try:
        client.search_logged_models(["0"], max_results=1)
    except Exception as error:
        if not is_unknown_here(error):
            raise
        return "it keeps no logged models: the Models tab and the column model_uri stay empty; a server of MLflow 3 has them"
    return ""


def _settled(client: MlflowClient, experiment_id: str, run_id: str, way: Way) -> LoggedModel:
    """Return the single logged model of a configuration, the oldest.

    Unfinished others, left by crashes and repeated requests, are deleted.
    """
    found = _search(client, experiment_id, way)
    if not found:
        made = client.create_logged_model(
            experiment_id, way.name, source_run_id=run_id, tags=dict(way.tags), params=dict(way.params)
        )
        # A lock protects a SQLite file, which only this machine writes; elsewhere another machine may have created one, too.
        found = [made] if sqlite_path(client.tracking_uri) else _search(client, experiment_id, way)
    first, *others = found
    for other in others:
        if other.status != "READY":
            client.delete_logged_model(other.model_id)
    if first.status != "READY":
        client.finalize_logged_model(first.model_id, "READY")
    return first


def _search(client: MlflowClient, experiment_id: str, way: Way) -> list[LoggedModel]:
    found = client.search_logged_models([experiment_id], filter_string=f"tags.`{WAY_TAG}` = '{way.key}'")
    return sorted(found, key=lambda model: (model.creation_timestamp, model.model_id))


def _name(settings: Mapping[str, Any]) -> str:
    recipe = settings.get("quantization", "none")
    how = f"{settings.get('backend', '')} {settings.get('dtype', '') if recipe == 'none' else recipe}"
    device, threads = str(settings.get("device", "cpu")), str(settings.get("threads", ""))
    parts = [
        short_name(str(settings["model_id"])),
        how.strip(),
        "" if settings.get("compile", "none") == "none" else "compiled",
        device if device != "cpu" else plural(int(threads), "thread") if threads.isdecimal() else "",
    ]
    # MLflow takes none of these in a name.
    return shorten(NOT_IN_MODEL_NAMES.sub("_", " \N{MIDDLE DOT} ".join(filter(None, parts))), MAX_RUN_NAME)


_DIGEST_TAGS = {
    **{name: schema.ENV_TAG_PREFIX + name for name in MODEL_DIGESTS},
    "calibration_digest": schema.DIGEST_PREFIX + "calibration_digest",
}
"""Digests of what a loaded model is made of, by the tags of a run."""
