"""Read from a store: directly from a known database, else through MLflow, page by page."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.host.libraries import gc_paused
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.mlflow_experiments import experiment_names
from llmtrack.tracking.read import direct
from llmtrack.tracking.read.direct import RunHead
from llmtrack.tracking.read.filters import RunFilter, key_quoted
from llmtrack.tracking.uri import resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.store.entities import PagedList


class Source:
    """A store to read from; MLflow, which takes seconds to import, is only loaded if needed."""

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.uri = resolve_tracking_uri(tracking_uri)

    @cached_property
    def client(self) -> MlflowClient:
        """MLflow's client."""
        return store.open_existing(self.uri)

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of active MLflow experiments by id."""
        names = direct.experiment_names(self.uri)
        return experiment_names(self.client) if names is None else names

    def experiment_tags(self, key: str) -> dict[str, str]:
        """Return the values of a tag by the id of the active MLflow experiments that have it.

        Raises:
            TrackingError: the store cannot be read.
        """
        values = direct.experiment_tags(self.uri, key)
        if values is None:
            tagged = f"tags.{key_quoted(key)} LIKE '%'"
            with store_errors.one_line_errors(self.client):
                experiments = self.client.search_experiments(max_results=1000, filter_string=tagged)
            values = {experiment.experiment_id: experiment.tags[key] for experiment in experiments}
        return {number: value for number, value in values.items() if number in self.names}

    def newest(self, run_filter: RunFilter, limit: int = 1) -> list[RunHead]:
        """Return the newest matching runs; the filter must not contain a word or model.

        Raises:
            TrackingError: the store cannot be read.
        """
        ids = list(self.names)
        runs = direct.newest(self.uri, ids, run_filter, limit)
        if runs is not None:
            return runs
        (text,) = run_filter.filters()
        return [
            RunHead(run.info.run_id, run.info.experiment_id, run.data.tags)
            for run in newest_runs(self.client, ids, text, limit)
        ]


PAGE = 500
_FIRST_PAGE = 100
_AT_ONCE = 4
NEWEST_FIRST = "attributes.start_time DESC"
_OLDEST_FIRST = "attributes.start_time ASC"


@dataclass(frozen=True)
class _Interval:
    """Start times from `low` to `high`, inclusive, in milliseconds; `token` if partly read."""

    low: int
    high: int
    token: str | None = None


def read_pages(client: MlflowClient, experiment_ids: Sequence[str], text: str) -> Iterator[list[Run]]:
    """Yield all runs matching an MLflow filter, page by page; from a server unordered and with duplicates.

    Raises:
        UsageError: MLflow rejects the filter.
        TrackingError: the store cannot be read.
    """
    if not experiment_ids:
        return
    read = _from_server if client.tracking_uri.startswith("http") else _in_turn
    pages = read(client, experiment_ids, text)
    with gc_paused():
        for page in pages:
            yield page
            # Only the young generation: the garbage of one page.
            del page
            gc.collect(1)


def newest_runs(client: MlflowClient, experiment_ids: Sequence[str], text: str, limit: int = 1) -> list[Run]:
    """Return the newest runs matching an MLflow filter; raises as `read_pages`."""
    return list(_page(client, experiment_ids, text, limit)) if experiment_ids else []


def _in_turn(client: MlflowClient, experiment_ids: Sequence[str], text: str) -> Iterator[list[Run]]:
    token: str | None = None
    while True:
        page = _page(client, experiment_ids, text, PAGE, token)
        token = page.token
        yield list(page)
        if not token:
            return


def _from_server(client: MlflowClient, experiment_ids: Sequence[str], text: str) -> Iterator[list[Run]]:
    """Read the first page alone, which is usually everything, then intervals of start times concurrently.

    An interval with more than a page is split at the end of its page, so that crowded times are shared among requests.
    MLflow's page tokens only allow sequential reading.
    """
    first = _page(client, experiment_ids, text, _FIRST_PAGE)
    yield list(first)
    if not first.token:
        return
    oldest = _page(client, experiment_ids, text, 1, order=_OLDEST_FIRST)
    # Another process may have deleted runs in the meantime.
    low = min(run.info.start_time for run in [*oldest, *first])
    intervals = _split(_Interval(low, first[-1].info.start_time), _AT_ONCE)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        pending: set[Future[tuple[list[Run], list[_Interval]]]] = set()
        try:
            while intervals or pending:
                pending |= {
                    pool.submit(_read_interval, client, experiment_ids, text, interval) for interval in intervals
                }
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                intervals = []
                for future in done:
                    runs, rest = future.result()
                    intervals += rest
                    yield runs
        finally:
            for future in pending:
                future.cancel()


def _read_interval(
    client: MlflowClient, experiment_ids: Sequence[str], text: str, interval: _Interval
) -> tuple[list[Run], list[_Interval]]:
    """Return one page of an interval, and the remaining intervals."""
    limits = f"attributes.start_time >= {interval.low} and attributes.start_time <= {interval.high}"
    page = _page(client, experiment_ids, f"{text} and {limits}" if text else limits, PAGE, token=interval.token)
    if not page.token:
        return list(page), []
    last = page[-1].info.start_time
    if last == interval.high:
        # A whole page within one millisecond cannot be split by time.
        return list(page), [_Interval(interval.low, interval.high, page.token)]
    # More runs may have started in the last millisecond: it is read again, and duplicates are dropped.
    return list(page), _split(_Interval(interval.low, last), 2)


def _split(interval: _Interval, parts: int) -> list[_Interval]:
    length = interval.high - interval.low + 1
    edges = [interval.low + length * part // parts for part in range(parts + 1)]
    return [_Interval(low, high - 1) for low, high in itertools.pairwise(edges) if low < high]


def _page(
    client: MlflowClient,
    experiment_ids: Sequence[str],
    text: str,
    limit: int,
    token: str | None = None,
    order: str = NEWEST_FIRST,
) -> PagedList[Run]:
    from mlflow.exceptions import MlflowException

    try:
        return client.search_runs(list(experiment_ids), text, max_results=limit, page_token=token, order_by=[order])
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise store_errors.read_error(client, error) from error
        raise UsageError(f"MLflow rejects the filter {text!r}: {store_errors.one_line(error)}") from error
