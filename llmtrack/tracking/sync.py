"""Send what lies in the spool to MLflow, exactly once."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.tracking import store
from llmtrack.tracking.limits import HIDDEN, redact
from llmtrack.tracking.push import push
from llmtrack.tracking.spool import Entry, Notify, Spool, to_stderr

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LOCK_WAIT_S = 60.0


@dataclass(frozen=True)
class SyncResult:
    """What became of the records in a spool.

    Attributes:
        sent: records that are in MLflow now.
        left: records that are still in the spool.
        problems: why, one line for each kind of reason.
    """

    sent: int = 0
    left: int = 0
    problems: tuple[str, ...] = ()


def sync(
    spool: Path | None = None, tracking_uri: str | None = None, notify: Notify = to_stderr
) -> SyncResult:
    """Send every record in the spool to the store it belongs to, each exactly once.

    Args:
        spool: folder of the spool; see `llmtrack.tracking.spool.Spool`.
        tracking_uri: send all records to this store instead, wherever they were meant to go.
        notify: is given messages for the user.

    Raises:
        UsageError: the tracking URI is not accepted.
    """
    uri = store.resolve_tracking_uri(tracking_uri) if tracking_uri else None
    return push_all(Spool(spool, notify), uri, notify, only_own=False)


def push_all(spool: Spool, uri: str | None, notify: Notify, only_own: bool) -> SyncResult:
    """Send every record of a spool.

    Args:
        spool: the spool.
        uri: the store to send to, or None for each record's own.
        notify: is given messages for the user.
        only_own: leave records that belong to another store than `uri` alone.
    """
    spool.sweep()
    sent, problems = 0, dict[str, None]()
    clients: dict[str, MlflowClient | None] = {}
    for name in spool.names():
        entry = spool.peek(name)
        if entry is None or (only_own and uri is not None and entry.target.tracking_uri != redact(uri)):
            continue
        try:
            goal = uri or _with_credentials(entry.target.tracking_uri)
            if goal not in clients:
                clients[goal] = None
                clients[goal] = store.open_store(goal)
            client = clients[goal]
            if client is None:
                continue  # This store failed before; the reason is among the problems.
            same_store = entry.target.tracking_uri == redact(goal)
            experiment_id = experiment_of(client, entry, same_store)
            if push_entry(spool, name, client, experiment_id, _LOCK_WAIT_S, same_store) is not None:
                sent += 1
        except Exception as error:
            problems[store.one_line(error)] = None
            if not store.is_permanent(error) and not isinstance(error, OSError):
                clients[goal] = None
    return SyncResult(sent, len(spool.names()), tuple(problems))


def push_entry(
    spool: Spool, name: str, client: MlflowClient, experiment_id: str, wait_s: float, same_store: bool
) -> str | None:
    """Send one record and remove it from the spool; return its run's id.

    None if another process holds the spool for `wait_s` or has sent the record itself.

    Raises:
        mlflow.MlflowException: the store failed; the record stays in the spool.
    """
    with spool.claim(name, wait_s) as entry:
        if entry is None:
            return None
        if not same_store:
            entry = dataclasses.replace(entry, run_id=None, attempted=True)
        files = spool.files_of(entry) if entry.has_files else None
        run_id = push(client, experiment_id, entry, files, spool.update)
        spool.remove(entry)
        return run_id


def experiment_of(client: MlflowClient, entry: Entry, same_store: bool) -> str:
    """Return the id of the MLflow experiment that a record belongs to, created if need be."""
    target = entry.target
    if target.experiment:
        return store.ensure_experiment(client, target.experiment)
    if target.experiment_id and same_store:
        return target.experiment_id
    return store.ensure_experiment(client, store.DEFAULT_EXPERIMENT)


def _with_credentials(uri: str) -> str:
    """Return a record's store with the credentials that were removed from it, taken from the environment."""
    from llmtrack.errors import TrackingError

    current = os.environ.get("MLFLOW_TRACKING_URI", "")
    if current:
        current = store.resolve_tracking_uri(current)
        if redact(current) == uri:
            return current
    if HIDDEN in uri:
        raise TrackingError(
            f"records for {uri} need its credentials: set MLFLOW_TRACKING_URI to the whole address"
        )
    return uri
