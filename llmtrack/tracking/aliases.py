"""Aliases of runs, such as `production`, kept as a tag as a model registry keeps them of models.

MLflow cannot change two runs at once. So the new run gets the alias first and the old one loses it then, and the tag's
value is the time: whoever looks in between takes the newest, and at no moment is there none.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.filters import key_quoted
from llmtrack.tracking.ids import run_of_id
from llmtrack.tracking.paging import newest_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST = 100


def set_alias(name: str, run_id: str, tracking_uri: str | None = None) -> str | None:
    """Give a run an alias; within its MLflow experiment, any other run loses it.

    Args:
        name: letters, digits and `_.-`.
        run_id: the run of a scenario, or of a study for all its scenarios; its first 8 characters do.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Returns:
        The run that had the alias before, or None.

    Raises:
        UsageError: the name is not accepted, or there is no such run.
        TrackingError: the store cannot be used.
    """
    from mlflow.exceptions import MlflowException

    key = alias_tag(name)
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    named = run_of_id(client, list(store.experiment_names(client)), run_id)
    if named is None:
        raise UsageError(f"there is no run {run_id!r}: `llmtrack runs` lists them")
    run_id = named.info.run_id
    holders = _holders(client, [named.info.experiment_id], key)
    try:
        client.set_tag(run_id, key, str(time.time_ns()))
        for run in holders:
            if run.info.run_id != run_id:
                client.delete_tag(run.info.run_id, key)
    except MlflowException as error:
        raise store_errors.unreadable(client, error) from error
    return holders[0].info.run_id if holders else None


def run_of_alias(name: str, experiment: str | None = None, tracking_uri: str | None = None) -> str:
    """Return the id of the run that has an alias.

    Args:
        name: the alias.
        experiment: name of the llmtrack or MLflow experiment, where several have such an alias.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        UsageError: no run has it, or runs of several MLflow experiments have.
        TrackingError: the store cannot be read.
    """
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    names = store.experiment_names(client)
    holders = [
        run
        for run in _holders(client, list(names), alias_tag(name))
        if experiment in (None, names[run.info.experiment_id], run.data.tags.get("llmtrack.experiment"))
    ]
    if not holders:
        where = f" in experiment {experiment!r}" if experiment else ""
        raise UsageError(f"no run has the alias {name!r}{where}: give it by `llmtrack alias {name} RUN_ID`")
    places = sorted({names[run.info.experiment_id] for run in holders})
    if len(places) > 1:
        raise UsageError(
            f"runs of several experiments have the alias {name!r} ({', '.join(places)}): name one"
        )
    return holders[0].info.run_id


def alias_tag(name: str) -> str:
    """Return the tag that keeps an alias.

    Raises:
        UsageError: the name is not accepted.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of an alias: use letters, digits and _ . -")
    return schema.ALIAS_PREFIX + name


def _holders(client: MlflowClient, experiment_ids: list[str], key: str) -> list[Run]:
    """Return the runs that have an alias, the one it was given last first."""
    # Whether a tag is there: older releases of MLflow know no IS NOT NULL for tags.
    runs = newest_runs(client, experiment_ids, f"tags.{key_quoted(key)} LIKE '%'", _MOST)
    return sorted(runs, key=lambda run: int(run.data.tags[key]), reverse=True)
