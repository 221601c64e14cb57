"""Keep prepared views with an MLflow experiment, and link to them: its UI opens what a tag of the experiment holds."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from llmtrack.tracking import store, store_errors
from llmtrack.tracking.ids import is_study_id

if TYPE_CHECKING:
    from mlflow import MlflowClient

PREFIX = "mlflow.sharedViewState."
# A value of an experiment's tag holds so much.
MOST_CHARACTERS = 5000
# Views of older studies shrink to which runs they show, and then go: all tags of an experiment are read whenever its page is
# opened, and where a view is gone MLflow opens its overview. `llmtrack report` prepares one again.
MOST_KEPT, MOST_SHORT = 200, 1_500
_WHICH_RUNS = (
    "searchFilter",
    "orderByKey",
    "orderByAsc",
    "startTime",
    "lifecycleFilter",
    "modelVersionFilter",
    "datasetsFilter",
)
# Without it MLflow opens an experiment at its traces, and a run at its evaluations.
KIND = "workflowType=machine_learning"


def keep_views(views: Mapping[str, str], experiment_id: str, tracking_uri: str | None = None) -> None:
    """Write views to an experiment, shorten those of older studies than the last `MOST_KEPT`, and remove the oldest.

    Args:
        views: JSON by key, a study's id; one that is too long for a tag is left out.
        experiment_id: the MLflow experiment.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        TrackingError: the store refuses.
    """
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    with store_errors.asking(client):
        for key, text in views.items():
            if len(text) <= MOST_CHARACTERS:
                client.set_experiment_tag(experiment_id, PREFIX + key, text)
        _forget_oldest(client, experiment_id)


def kept_views(experiment_id: str, tracking_uri: str | None = None) -> frozenset[str]:
    """Return the keys of an experiment's views; none if they cannot be read."""
    client = store.open_existing(store.resolve_tracking_uri(tracking_uri))
    with contextlib.suppress(Exception):  # a plain link leads there, too
        tags = client.get_experiment(experiment_id).tags
        return frozenset(tag.removeprefix(PREFIX) for tag in tags if tag.startswith(PREFIX))
    return frozenset()


def _forget_oldest(client: MlflowClient, experiment_id: str) -> None:
    if not hasattr(client, "delete_experiment_tag"):
        return
    tags = client.get_experiment(experiment_id).tags
    # Older versions kept charts as a view of their own.
    ours = [tag for tag in tags if tag.startswith(PREFIX) and is_study_id(_study(tag))]
    # An id holds the time at which its study began.
    older = sorted(ours, key=lambda tag: _study(tag).split("-")[1:])[:-MOST_KEPT]
    for tag in older[:-MOST_SHORT]:
        client.delete_experiment_tag(experiment_id, tag)
    for tag in older[-MOST_SHORT:]:
        if (short := _shortened(tags[tag])) != tags[tag]:
            client.set_experiment_tag(experiment_id, tag, short)


def _shortened(text: str) -> str:
    """Return a view that shows the same runs, in MLflow's own columns and charts."""
    try:
        view = json.loads(text)
    except ValueError:  # MLflow's own form, of a view that a person has saved over ours
        return text
    return json.dumps({name: view[name] for name in _WHICH_RUNS if name in view}, separators=(",", ":"))


def _study(tag: str) -> str:
    return tag.removeprefix(PREFIX).removesuffix(".charts")


def runs_link(server: str, experiment_id: str, key: str = "", charts: bool = False) -> str:
    """Return where MLflow shows an experiment's runs, by a prepared view if there is a key.

    A version of MLflow that knows no such views shows its plain table there.
    """
    link = f"{_root(server)}#/experiments/{experiment_id}/runs?{KIND}"
    if key:
        link += f"&viewStateShareKey={quote(key)}"
    return link + ("&compareRunsMode=CHART" if charts else "")


def run_link(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return where MLflow shows a run, or an artifact of it.

    Args:
        server: its address; empty for a link within its pages.
        experiment_id: the MLflow experiment.
        run_id: the run.
        artifact: its path.
    """
    path = f"/artifacts/{quote(artifact)}" if artifact else ""
    return f"{_root(server)}#/experiments/{experiment_id}/runs/{run_id}{path}?{KIND}"


def _root(server: str) -> str:
    return f"{server.rstrip('/')}/" if server else ""
