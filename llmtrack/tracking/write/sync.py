"""Send the records in the spool to MLflow exactly once."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.errors import LlmtrackError, TrackingError
from llmtrack.host.formatting import plural
from llmtrack.host.secrets import HIDDEN, redact
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.mlflow_experiments import DEFAULT_EXPERIMENT, ensure_experiment
from llmtrack.tracking.uri import resolve_tracking_uri
from llmtrack.tracking.write.push import push
from llmtrack.tracking.write.spool import Entry, Notify, Spool, Target, to_stderr

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class SyncResult:
    """Numbers of records that were sent, are left, and are set aside as corrupt, with distinct problems, one line each."""

    sent: int = 0
    left: int = 0
    problems: tuple[str, ...] = ()
    corrupt: int = 0


def sync(spool: Path | None = None, tracking_uri: str | None = None, notify: Notify = to_stderr) -> SyncResult:
    """Send every record in the spool to its store, exactly once.

    Args:
        tracking_uri: send all records to this store instead.

    Raises:
        UsageError: the tracking URI is invalid.
        TrackingError: the spool is unreadable.
    """
    uri = resolve_tracking_uri(tracking_uri) if tracking_uri else None
    records = Spool(spool, notify)
    # The spool must be readable to report that it is empty.
    records.check_readable()
    records.restore()
    result = push_all(records, uri)
    records.check_readable()
    if not (corrupt := len(records.corrupt())):
        return result
    return dataclasses.replace(result, corrupt=corrupt, problems=(*result.problems, describe_corrupt(records)))


def describe_corrupt(spool: Spool) -> str:
    """Describe the corrupt records of a spool."""
    return (
        f"{plural(len(spool.corrupt()), 'record')} in {spool.set_aside} cannot be read: look at the entry.json of each, and delete "
        "the folder if none is needed"
    )


def push_all(spool: Spool, uri: str | None, only_own: bool = False) -> SyncResult:
    """Send every record of a spool; a failing record does not block the others.

    Args:
        uri: the store to send to, or None for each record's own.
        only_own: skip records of stores other than `uri`.
    """
    spool.sweep()
    stores, sent, problems = _Stores(), 0, dict[str, None]()
    for name in spool.names():
        destination = uri
        try:
            entry = spool.peek(name)
            if entry is None or (only_own and uri is not None and entry.target.tracking_uri != redact(uri)):
                continue
            destination = destination or with_credentials(entry.target.tracking_uri)
            if (client := stores.client(destination)) is not None:
                experiment_id = stores.experiment_id(destination, client, entry.target)
                same_store = entry.target.tracking_uri == redact(destination)
                sent += push_entry(spool, name, client, experiment_id, _LOCK_WAIT_S, same_store) is not None
        except Exception as error:
            problems[store_errors.one_line(error)] = None
            if destination is not None and _concerns_store(error):
                stores.check(destination)
    return SyncResult(sent, len(spool.names()), tuple(problems))


def push_entry(
    spool: Spool, name: str, client: MlflowClient, experiment_id: str, wait_s: float, same_store: bool = True
) -> str | None:
    """Send one record and remove it from the spool; return its run id.

    None if another process holds the record for `wait_s`, or has sent it. Works even if the spool has become read-only.

    Raises:
        mlflow.MlflowException: the store failed; the record stays in the spool.
    """
    with spool.claim(name, wait_s) as entry:
        if entry is None:
            return None
        if not same_store:
            entry = dataclasses.replace(entry, run_id=None, attempted=True)
        files = spool.files_of(entry) if entry.has_files else None
        run_id = push(client, experiment_id, entry, files, _if_possible(spool.update))
        # A record that cannot be removed is sent to the same run again.
        _if_possible(spool.remove)(entry)
        return run_id


def with_credentials(uri: str) -> str:
    """Restore the credentials of a record's store from the environment.

    Raises:
        TrackingError: the environment does not have them.
    """
    current = os.environ.get("MLFLOW_TRACKING_URI")
    if current and redact(resolve_tracking_uri(current)) == uri:
        return resolve_tracking_uri(current)
    if HIDDEN in uri:
        raise TrackingError(f"records for {uri} need its credentials: set MLFLOW_TRACKING_URI to the whole address")
    return uri


def _if_possible(write: Callable[[Entry], None]) -> Callable[[Entry], None]:
    def try_to_write(entry: Entry) -> None:
        with contextlib.suppress(OSError):
            write(entry)

    return try_to_write


class _Stores:
    """Opened stores and the experiments found in them."""

    def __init__(self) -> None:
        self._clients: dict[str, MlflowClient | None] = {}
        self._experiments: dict[tuple[str, Target], str] = {}

    def client(self, uri: str) -> MlflowClient | None:
        """Return the client of a store, or None if it failed before."""
        if uri not in self._clients:
            self._clients[uri] = None
            self._clients[uri] = store.open_store(uri)
        return self._clients[uri]

    def check(self, uri: str) -> None:
        """Give up an opened store, unless it answers a simple request: then it refuses a record, whatever it calls the reason."""
        try:
            if (client := self._clients.get(uri)) is not None:
                client.search_experiments(max_results=1)
        except Exception:
            self._clients[uri] = None

    def experiment_id(self, uri: str, client: MlflowClient, target: Target) -> str:
        """Return the id of a record's MLflow experiment, creating it if missing."""
        key = (uri, target)
        if key not in self._experiments:
            known = target.experiment_id if target.tracking_uri == redact(uri) else ""
            name = target.experiment or DEFAULT_EXPERIMENT
            self._experiments[key] = known or ensure_experiment(client, name)
        return self._experiments[key]


def _concerns_store(error: Exception) -> bool:
    """Return whether an error may affect all other records of the store, too."""
    if isinstance(error, LlmtrackError):
        return isinstance(error, store_errors.UnreachableError)
    return not store_errors.is_permanent(error) and not isinstance(error, OSError)
