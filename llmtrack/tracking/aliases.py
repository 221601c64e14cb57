"""Aliases of runs, such as `production`, kept as a tag as a model registry keeps them of models.

MLflow cannot change two runs at once. So the new run gets the alias first and the old one loses it then, and the tag's
value is the time: whoever looks in between takes the newest, and at no moment is there none.
"""

from __future__ import annotations

import re
import time

from llmtrack import metrics as schema
from llmtrack.errors import UsageError
from llmtrack.tracking import store_errors
from llmtrack.tracking.direct import Known
from llmtrack.tracking.filters import Wanted
from llmtrack.tracking.ids import run_of_id
from llmtrack.tracking.source import Source

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MOST = 1000


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
    key = alias_tag(name)
    source = Source(tracking_uri)
    named = run_of_id(source, run_id)
    if named is None:
        raise UsageError(f"there is no run {run_id!r}: `llmtrack runs` lists them")
    holders = [run for run in _holders(source, key) if run.experiment_id == named.experiment_id]
    with store_errors.asking(source.client):
        source.client.set_tag(named.run_id, key, str(time.time_ns()))
        for run in holders:
            if run.run_id != named.run_id:
                source.client.delete_tag(run.run_id, key)
    return holders[0].run_id if holders else None


def run_of_alias(source: Source, name: str, experiment: str | None = None) -> str:
    """Return the id of the run that has an alias.

    Args:
        source: the store.
        name: the alias.
        experiment: name of the llmtrack or MLflow experiment, where several have such an alias.

    Raises:
        UsageError: no run has it, or runs of several MLflow experiments have.
        TrackingError: the store cannot be read.
    """
    holders = [
        run
        for run in _holders(source, alias_tag(name))
        if experiment in (None, source.names[run.experiment_id], run.tags.get("llmtrack.experiment"))
    ]
    if not holders:
        where = f" in experiment {experiment!r}" if experiment else ""
        raise UsageError(f"no run has the alias {name!r}{where}: give it by `llmtrack alias {name} RUN_ID`")
    places = sorted({source.names[run.experiment_id] for run in holders})
    if len(places) > 1:
        raise UsageError(f"runs of several experiments have the alias {name!r} ({', '.join(places)}): name one")
    return holders[0].run_id


def alias_tag(name: str) -> str:
    """Return the tag that keeps an alias.

    Raises:
        UsageError: the name is not accepted.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name of an alias: use letters, digits and _ . -")
    return schema.ALIAS_PREFIX + name


def _holders(source: Source, key: str) -> list[Known]:
    """Return the runs that have an alias, the one it was given last first."""
    runs = source.newest(Wanted(has_tag=key), _MOST)
    return sorted(runs, key=lambda run: int(run.tags[key]), reverse=True)
