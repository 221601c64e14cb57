"""Describe the inputs of runs, prompts and corpora, as MLflow data sets: name, digest, source and schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmtrack.host.formatting import plural
from llmtrack.metrics import DIGEST_PREFIX
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import digest as digest_of
from llmtrack.spec.serialization import serializable
from llmtrack.spec.task import NAMED_CORPORA, GenerateTask
from llmtrack.tracking.limits import shorten

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

# Limits of MLflow's data sets.
_MAX_NAME = 500
_MAX_DIGEST = 36


@serializable()
@dataclass(frozen=True)
class DataSet:
    """An MLflow data set, and its use by a run.

    Attributes:
        name: of the corpus, or a description of a prompt set.
        context: `evaluation`, `training` or `calibration`.
        source_type: `local` (a file) or `code` (generated).
        source: JSON of MLflow's `DatasetSource`; folders are not tracked.
        profile: JSON of its size; empty: unknown.
    """

    name: str
    digest: str
    context: str
    source_type: str
    source: str
    schema: str
    profile: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Name and digest, by which metrics refer to it."""
        return self.name, self.digest


def data_sets_of(scenario: Scenario, params: Mapping[str, Any]) -> tuple[DataSet, ...]:
    """Return the data sets of a scenario: its prompts, and the texts whose digests are among the params of its run."""
    task = scenario.task
    prompts = prompt_set(task.prompts) if isinstance(task, GenerateTask) else None
    calibration = _text(params, {}, "calibration", "calibration")
    return tuple(filter(None, (prompts, corpus_of(params, {}), calibration)))


def corpus_of(params: Mapping[str, Any], tags: Mapping[str, str]) -> DataSet | None:
    """Return the corpus that a run scored or trained on, or None; its digest is a tag or a param of the run."""
    return _text(params, tags, "corpus", "training" if params.get("task") == "train" else "evaluation")


def prompt_set(prompts: Sequence[str]) -> DataSet:
    """Return the data set of prompts, without their texts."""
    profile = json.dumps({"num_rows": len(prompts)})
    return DataSet(
        plural(len(prompts), "prompt"),
        digest_of(list(prompts)),
        "evaluation",
        *_by_llmtrack("prompts"),
        _schema("prompt"),
        profile,
    )


def entity(dataset: DataSet) -> DatasetInput:
    """Convert a data set to a run's input in MLflow."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    described = Dataset(
        dataset.name, dataset.digest, dataset.source_type, dataset.source, dataset.schema, dataset.profile or None
    )
    return DatasetInput(described, [InputTag("mlflow.data.context", dataset.context)])


def _text(params: Mapping[str, Any], tags: Mapping[str, str], param: str, context: str) -> DataSet | None:
    name, key = params.get(param), f"{param}_digest"
    digest = tags.get(DIGEST_PREFIX + key) or params.get(key)
    if not name or name == NONE or not digest:
        return None
    source = _by_llmtrack(str(name)) if name in NAMED_CORPORA else ("local", json.dumps({"uri": str(name)}))
    return DataSet(shorten(str(name), _MAX_NAME), shorten(str(digest), _MAX_DIGEST), context, *source, _schema("text"))


def _by_llmtrack(content: str) -> tuple[str, str]:
    tags = {"mlflow.source.name": "llmtrack", "mlflow.source.type": "LOCAL", "of": content}
    return "code", json.dumps({"tags": tags})


def _schema(column: str) -> str:
    return json.dumps({"mlflow_colspec": [{"type": "string", "name": column, "required": True}]})
