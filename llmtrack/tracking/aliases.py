"""Aliases of runs, such as `production`, stored as tags.

MLflow cannot update two runs atomically. The new run therefore gets the alias before the old one loses it, and the
tag's value is the time: readers take the newest, so that there is always one.
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
    """Give a run an alias; any other run of its MLflow experiment loses it.

    Args:
        name: letters, digits and `_.-`.
        run_id: run of a scenario, or of a study for all its scenarios; the first 8 characters suffice.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Returns:
        The run that had the alias before, or None.

    Raises:
        UsageError: the name is invalid, or there is no such run.
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
    """Return the id of the run with an alias.

    Args:
        experiment: llmtrack or MLflow experiment, if several have such an alias.

    Raises:
        UsageError: no run has it, or runs of several MLflow experiments do.
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
    """Return the tag of an alias.

    Raises:
        UsageError: the name is invalid.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid alias {name!r}: use letters, digits and _ . -")
    return schema.ALIAS_PREFIX + name


def _holders(source: Source, key: str) -> list[Known]:
    """Return the runs with an alias, the latest first."""
    runs = source.newest(Wanted(has_tag=key), _MOST)
    return sorted(runs, key=lambda run: int(run.tags[key]), reverse=True)
