"""Store prepared views in tags of an MLflow experiment, and link to them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from llmtrack.tracking import store, store_errors
from llmtrack.tracking.read.lookup import is_study_id

if TYPE_CHECKING:
    from mlflow import MlflowClient

PREFIX = "mlflow.sharedViewState."
# MLflow's maximum length of an experiment tag.
MOST_CHARACTERS = 5000
# Views of older studies are reduced to their run filter and later removed, because MLflow reads all tags of an experiment
# whenever its page opens. Without a view MLflow shows its overview; `llmtrack report` restores the view.
MOST_KEPT, MOST_SHORT = 200, 1_500
_RUN_SELECTION = (
    "searchFilter",
    "orderByKey",
    "orderByAsc",
    "startTime",
    "lifecycleFilter",
    "modelVersionFilter",
    "datasetsFilter",
)
# Without it MLflow opens an experiment's traces and a run's evaluations.
KIND = "workflowType=machine_learning"


def keep_views(views: Mapping[str, str], experiment_id: str, tracking_uri: str | None = None) -> None:
    """Write views to an experiment, shorten those older than the last `MOST_KEPT` studies, and remove the oldest.

    Args:
        views: JSON by key, a study's id; one too long for a tag is left out.

    Raises:
        TrackingError: the store refuses.
    """
    client = store.open_existing(tracking_uri)
    with store_errors.one_line_errors(client):
        for key, text in views.items():
            if len(text) <= MOST_CHARACTERS:
                client.set_experiment_tag(experiment_id, PREFIX + key, text)
        _forget_oldest(client, experiment_id)


def existing_views(experiment_id: str, tracking_uri: str | None = None) -> frozenset[str]:
    """List the keys of an experiment's views; empty if unreadable."""
    client = store.open_existing(tracking_uri)
    with contextlib.suppress(Exception):  # a link without a view works, too
        tags = client.get_experiment(experiment_id).tags
        return frozenset(tag.removeprefix(PREFIX) for tag in tags if tag.startswith(PREFIX))
    return frozenset()


def _forget_oldest(client: MlflowClient, experiment_id: str) -> None:
    if not hasattr(client, "delete_experiment_tag"):
        return
    tags = client.get_experiment(experiment_id).tags
    # Older versions stored charts as a separate view.
    ours = [tag for tag in tags if tag.startswith(PREFIX) and is_study_id(_study(tag))]
    # Ids contain the start time of their study.
    older = sorted(ours, key=lambda tag: _study(tag).split("-")[1:])[:-MOST_KEPT]
    for tag in older[:-MOST_SHORT]:
        client.delete_experiment_tag(experiment_id, tag)
    for tag in older[-MOST_SHORT:]:
        if (short := _shortened(tags[tag])) != tags[tag]:
            client.set_experiment_tag(experiment_id, tag, short)


def _shortened(text: str) -> str:
    """Reduce a view to its runs, in MLflow's default columns and charts."""
    try:
        view = json.loads(text)
    except ValueError:  # MLflow's own format, saved by the user over ours
        return text
    return json.dumps({name: view[name] for name in _RUN_SELECTION if name in view}, separators=(",", ":"))


def _study(tag: str) -> str:
    return tag.removeprefix(PREFIX).removesuffix(".charts")


def runs_link(server: str, experiment_id: str, key: str = "", charts: bool = False) -> str:
    """Link to an experiment's runs in MLflow, with the view of a key; releases without views show their default table."""
    link = f"{_root(server)}#/experiments/{experiment_id}/runs?{KIND}"
    if key:
        link += f"&viewStateShareKey={quote(key)}"
    return link + ("&compareRunsMode=CHART" if charts else "")


def run_link(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Link to a run in MLflow, or to one of its artifacts; an empty server gives a link relative to MLflow's pages."""
    path = f"/artifacts/{quote(artifact)}" if artifact else ""
    return f"{_root(server)}#/experiments/{experiment_id}/runs/{run_id}{path}?{KIND}"


def _root(server: str) -> str:
    return f"{server.rstrip('/')}/" if server else ""
