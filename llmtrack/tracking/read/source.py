"""A store to read from: directly from a known database, else through MLflow."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from llmtrack.tracking import store, store_errors
from llmtrack.tracking.read import direct
from llmtrack.tracking.read.direct import Known
from llmtrack.tracking.read.filters import Wanted, key_quoted
from llmtrack.tracking.read.paging import newest_runs

if TYPE_CHECKING:
    from mlflow import MlflowClient


class Source:
    """A store to read from; MLflow, which takes seconds to import, is only loaded if needed.

    Args:
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.
    """

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = store.resolve_tracking_uri(tracking_uri)

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client."""
        return store.open_existing(self.uri)

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of active MLflow experiments by id."""
        found = direct.experiment_names(self.uri)
        return store.experiment_names(self.client) if found is None else found

    def experiment_tags(self, key: str) -> dict[str, str]:
        """Return the values of a tag by the id of the active MLflow experiments that have it.

        Raises:
            TrackingError: the store cannot be read.
        """
        found = direct.experiment_tags(self.uri, key)
        if found is None:
            with store_errors.asking(self.client):
                having = self.client.search_experiments(
                    max_results=1000, filter_string=f"tags.{key_quoted(key)} LIKE '%'"
                )
            found = {each.experiment_id: each.tags[key] for each in having}
        return {number: value for number, value in found.items() if number in self.names}

    def newest(self, wanted: Wanted, limit: int = 1) -> list[Known]:
        """Return the newest matching runs; `wanted` must not contain a word or model.

        Raises:
            TrackingError: the store cannot be read.
        """
        ids = list(self.names)
        found = direct.newest(self.uri, ids, wanted, limit)
        if found is not None:
            return found
        (text,) = wanted.filters()
        return [
            Known(run.info.run_id, run.info.experiment_id, run.data.tags)
            for run in newest_runs(self.client, ids, text, limit)
        ]
