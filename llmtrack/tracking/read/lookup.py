"""Look up runs by id, by the first characters of an id, or by an alias such as `production` or `smollm2@champion`.

An alias is a tag of the MLflow experiment whose value is the run's id: one request moves it, and no run's page shows it.
Older versions tagged the run itself, with the time as the value; where an experiment has no such tag, the newest run counts.
`NAME@ALIAS` is an alias in MLflow's model registry.
"""

from __future__ import annotations

import re

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking import store_errors
from llmtrack.tracking.read.direct import RunHead
from llmtrack.tracking.read.filters import RunFilter
from llmtrack.tracking.read.source import Source

SHORT_ID = 8
"""Printed characters of an id."""

_COMPLETE_ID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(rf"[0-9a-f]{{{SHORT_ID},32}}")
_STUDY = re.compile(r"\w+-\d{8}-\d{6}-[0-9a-f]{4}")
_MOST_NAMED = 5
_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST_TAGGED = 1000


def is_id(text: str) -> bool:
    """Return whether a text is a complete run id."""
    return bool(_COMPLETE_ID.fullmatch(text))


def may_be_id(text: str) -> bool:
    """Return whether a text is a run id or a sufficiently long prefix."""
    return bool(_ID.fullmatch(text))


def is_study_id(text: str) -> bool:
    """Return whether a text has the form of a study id: `precision-20261128-014301-3f2a`."""
    return bool(_STUDY.fullmatch(text))


def run_of_id(source: Source, text: str) -> RunHead | None:
    """Return the run with an id or id prefix, or None.

    Raises:
        UsageError: the prefix is ambiguous.
        TrackingError: the store cannot be read.
    """
    if not may_be_id(text):
        return None
    matches = source.newest(RunFilter(run_id=text), _MOST_NAMED)
    if len(matches) > 1:
        raise UsageError(
            f"several runs begin with {text!r} ({', '.join(run.run_id for run in matches)}): give more characters of the id"
        )
    return matches[0] if matches else None


def set_alias(name: str, run_id: str, tracking_uri: str | None = None) -> str | None:
    """Give a run an alias, which any other run of its MLflow experiment loses; return the run that had it, or None.

    Args:
        name: letters, digits and `_.-`.
        run_id: run of a scenario, or of a study for all its scenarios; the first 8 characters suffice.

    Raises:
        UsageError: the name is invalid, or there is no such run.
        TrackingError: the store cannot be used.
    """
    key = alias_tag(name)
    source = Source(tracking_uri)
    run = run_of_id(source, run_id)
    if run is None:
        raise UsageError(f"there is no run {run_id!r}: `llmtrack runs` lists them")
    holders = _holders(source, key)
    before = next((holder.run_id for holder in holders if holder.experiment_id == run.experiment_id), None)
    with store_errors.one_line_errors(source.client):
        source.client.set_experiment_tag(run.experiment_id, key, run.run_id)
    return before


def run_of_alias(source: Source, name: str, experiment: str | None = None) -> str:
    """Return the id of the run with an alias, or of the run that a registered version was made of.

    Args:
        name: an alias, or `MODEL@ALIAS` of a registered model.
        experiment: llmtrack or MLflow experiment, if several have such an alias.

    Raises:
        UsageError: no run has it, or runs of several MLflow experiments do.
        TrackingError: the store cannot be read.
    """
    if "@" in name:
        return _run_of_version(source, name)
    holders = [
        run
        for run in _holders(source, alias_tag(name))
        if experiment in (None, source.names[run.experiment_id], run.tags.get("llmtrack.experiment"))
    ]
    if not holders:
        scope = f" in experiment {experiment!r}" if experiment else ""
        raise UsageError(f"no run has the alias {name!r}{scope}: set it by `llmtrack alias {name} RUN_ID`")
    experiments = sorted({source.names[run.experiment_id] for run in holders})
    if len(experiments) > 1:
        raise UsageError(f"runs of several experiments have the alias {name!r} ({', '.join(experiments)}): name one")
    return holders[0].run_id


def alias_tag(name: str) -> str:
    """Return the tag of an alias.

    Raises:
        UsageError: the name is invalid.
    """
    if not _ALIAS.fullmatch(name):
        raise UsageError(f"invalid alias {name!r}: use letters, digits and _ . -")
    return schema.ALIAS_PREFIX + name


def _holders(source: Source, key: str) -> list[RunHead]:
    """Return the runs with an alias, one of each MLflow experiment."""
    aliased = source.experiment_tags(key)
    holders = [run for run_id in aliased.values() if (run := run_of_id(source, run_id)) is not None]
    tagged = source.newest(RunFilter(has_tag=key), _MOST_TAGGED)
    for run in sorted(tagged, key=lambda run: int(run.tags[key]), reverse=True):
        if run.experiment_id not in {*aliased, *(holder.experiment_id for holder in holders)}:
            holders.append(run)
    return holders


def _run_of_version(source: Source, text: str) -> str:
    from mlflow.exceptions import MlflowException

    name, _, alias = text.rpartition("@")
    with store_errors.one_line_errors(source.client):
        try:
            version = source.client.get_model_version_by_alias(name, alias)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            raise UsageError(
                f"no registered model {name!r} has the alias {alias!r}: set it by `llmtrack promote RUN --as {text}`"
            ) from error
    if not version.run_id:
        raise UsageError(f"version {version.version} of {name!r} was registered without a run: promote one")
    return str(version.run_id)
