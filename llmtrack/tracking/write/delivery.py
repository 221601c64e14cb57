"""Deliver records to one MLflow experiment, keeping each in the spool until it arrives."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact, secrets_of
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.mlflow_experiments import default_experiment, ensure_experiment, experiment_of_run
from llmtrack.tracking.write import sync
from llmtrack.tracking.write.files import linked
from llmtrack.tracking.write.push import ArtifactsError, push, redacted
from llmtrack.tracking.write.records import RunRecord
from llmtrack.tracking.write.spool import Entry, Notify, Spool, Target

if TYPE_CHECKING:
    from mlflow import MlflowClient

_LOCK_WAIT_S = 15.0
_FINAL_LOCK_WAIT_S = 60.0
_FIRST_RETRY_S = 30.0


class Delivery:
    """Delivery to one MLflow experiment of a store that may be temporarily unreachable.

    Args:
        experiment: MLflow experiment; empty for the store's default.
        notify: receives one-line messages for the user.
        joins: run of `mlflow run` that the first study joins, which also determines the experiment, or None.

    Attributes:
        tracking_uri: may contain credentials.
        experiment_id: None while the store is unreachable.
        offline: whether the store is unreachable; records stay in the spool meanwhile.
        joins: None once a study has joined it.
        secrets: texts to remove from everything written.
    """

    def __init__(
        self, tracking_uri: str, experiment: str, spool: Spool, notify: Notify, joins: str | None = None
    ) -> None:
        self.tracking_uri = tracking_uri
        self.experiment = experiment
        self.experiment_id: str | None = None
        self.offline = False
        self.spool = spool
        self.joins = joins
        self.secrets = secrets_of(os.environ)
        self._notify = notify
        self._client: MlflowClient | None = None
        self._run_ids: dict[str, str] = {}
        self._notified: set[str] = set()
        self._retry_at = 0.0
        self._retry_wait_s = _FIRST_RETRY_S

    @property
    def display_uri(self) -> str:
        """Address of the store without credentials."""
        return redact(self.tracking_uri, self.secrets)

    def open(self) -> None:
        """Find the experiment in the store; continue offline if a server does not answer.

        Raises:
            TrackingError: the store refuses: no such database folder, no permission, a deleted experiment.
        """
        try:
            self._connected()
        except store_errors.UnreachableError as error:
            self._go_offline(error)

    def run_of(self, record_id: str) -> str | None:
        """Return the run id of a record written by this object, or None."""
        return self._run_ids.get(record_id)

    def write(
        self,
        record: RunRecord,
        run_id: str | None = None,
        files: Mapping[str, bytes | Path] | None = None,
        known: bool = False,
        last: bool = False,
    ) -> str | None:
        """Write a record, or keep it in the spool; return its run id, or None if it is only kept.

        Args:
            run_id: run to write to; None for the record's own, or a new one.
            files: artifact path to content, or to a file to copy.
            known: whether the run may exist already and is written to again.
            last: whether nothing follows: retry an unreachable store once more, and wait longer for locks.

        Raises:
            TrackingError: neither the spool nor the store accepts it.
        """
        if record.record_id in self._run_ids and not known:
            return self._run_ids[record.record_id]  # The same outcome was logged twice.
        existing = {k: v for k, v in (files or {}).items() if not isinstance(v, Path) or v.is_file()}
        if missing := sorted(set(files or {}) - set(existing)):
            self._notify(f"{record.run_name}: {', '.join(missing)} cannot be tracked: no such file any more")
        entry = Entry(redacted(record, self.secrets), self._target(), run_id=run_id, attempted=known)
        try:
            entry = self.spool.put(entry, existing)
        except TrackingError as error:
            return self._write_directly(entry, existing, error)
        if not self._may_try(last):
            return None
        wait_s = _FINAL_LOCK_WAIT_S if last else _LOCK_WAIT_S
        try:
            client = self._connected()
            pushed = sync.push_entry(self.spool, entry.name, client, self.experiment_id or "", wait_s)
        except ArtifactsError as error:
            pushed = error.run_id
            # Report it for the first run and the study only: other runs fail alike.
            self._notify_once(
                f"{record.run_name}: the numbers are tracked, but not {', '.join(sorted({*record.texts, *existing}))} "
                f"({error}); files are kept in {self.spool.folder}, `llmtrack sync` tries again",
                topic=f"files of {record.tags.get('llmtrack.kind')}",
            )
        except Exception as error:
            self._report(error)
            return None
        if pushed is not None:
            self._run_ids[record.record_id] = pushed
        self._back_online()
        return pushed

    def attempt(self, call: Callable[[MlflowClient], object]) -> bool:
        """Make an optional request to the store; return whether it succeeded."""
        if self._client is None or not self._may_try():
            return False
        try:
            call(self._client)
        except Exception as error:
            self._report(error)
            return False
        return True

    def waiting(self, study_id: str) -> int:
        """Return the number of records of a study, or of a suite's studies, in the spool."""
        keys = ("llmtrack.study_id", "llmtrack.suite_id")
        return self.spool.waiting(lambda entry: study_id in map(entry.record.tags.get, keys))

    def sync(self) -> sync.SyncResult:
        """Send all records of this store in the spool; see `llmtrack.tracking.write.sync.sync`."""
        return sync.push_all(self.spool, self.tracking_uri, only_own=True)

    def _connected(self) -> MlflowClient:
        if self._client is not None:
            return self._client
        from mlflow.exceptions import MlflowException

        client = store.open_store(self.tracking_uri)
        try:
            if self.joins is not None:
                self.experiment_id, self.experiment = experiment_of_run(client, self.joins)
            else:
                self.experiment = self.experiment or default_experiment(client)
                self.experiment_id = ensure_experiment(client, self.experiment)
            self._warn_of_local_artifacts(client)
        except MlflowException as error:
            kind = TrackingError if store_errors.is_permanent(error) else store_errors.UnreachableError
            raise kind(f"cannot use {self.display_uri}: {store_errors.one_line(error)}") from error
        self._client = client
        return client

    def _warn_of_local_artifacts(self, client: MlflowClient) -> None:
        """Warn if files would be stored on this machine's disk, where a remote server cannot find them."""
        if urlsplit(self.tracking_uri).scheme not in ("http", "https"):
            return
        location = client.get_experiment(self.experiment_id or "").artifact_location
        if urlsplit(location).scheme in ("", "file"):
            self._notify_once(
                f"{self.display_uri} serves no artifacts itself (--no-serve-artifacts): plots and tables go to {location} on the "
                "disk of this machine, where the server finds them only if it runs here",
                topic="disk",
            )

    def _write_directly(self, entry: Entry, files: Mapping[str, bytes | Path], spool_error: TrackingError) -> str:
        """Write a record that the spool cannot keep; what the store rejects now is lost.

        Raises:
            TrackingError: the store is unreachable, too.
        """
        self._notify_once(
            f"{spool_error}; writing to {self.display_uri} directly; what it rejects is lost",
            topic="spool",
        )
        try:
            client = self._connected()
            with linked(files) as (folder, lost):
                if lost:
                    self._notify(f"{entry.record.run_name}: the files {', '.join(lost)} are lost")
                run_id = push(client, self.experiment_id or "", entry, folder, lambda progress: None)
        except Exception as error:
            if not isinstance(error, ArtifactsError):
                raise spool_error from error
            run_id = error.run_id
            self._notify(f"{entry.record.run_name}: {error}; they are lost")
        self._run_ids[entry.record.record_id] = run_id
        self._back_online()
        return run_id

    def _target(self) -> Target:
        number, name = self.experiment_id or "", self.experiment
        if self._client is None:
            # Offline since the start: the intended target, as far as known.
            name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or ""
            number = "" if name else os.environ.get("MLFLOW_EXPERIMENT_ID") or ""
        return Target(redact(self.tracking_uri), name, number)

    def _may_try(self, last: bool = False) -> bool:
        return not self.offline or last or time.monotonic() >= self._retry_at

    def _report(self, error: Exception) -> None:
        """Notify why a record stays in the spool; go offline if the store is unreachable."""
        if store_errors.is_local(error):
            self._notify(
                f"a record is incomplete ({store_errors.one_line(error)}); it is kept in {self.spool.folder}, "
                "`llmtrack sync` tries again"
            )
            return
        if isinstance(error, store_errors.UnreachableError) or not store_errors.is_permanent(error):
            self._go_offline(error)
            return
        why = ""
        if store_errors.is_denied(error):
            why = f": {store_errors.missing_permission(self.tracking_uri, self.experiment or '')}"
        self._notify(
            f"MLflow rejected a record ({store_errors.one_line(error)}){why}; it is kept in {self.spool.folder}, "
            "`llmtrack sync` tries again"
        )

    def _notify_once(self, message: str, topic: str) -> None:
        if topic not in self._notified:
            self._notified.add(topic)
            self._notify(message)

    def _go_offline(self, error: Exception) -> None:
        if self.offline:
            self._retry_wait_s *= 2
        else:
            self.offline = True
            self._retry_wait_s = _FIRST_RETRY_S
            self._notify(
                f"tracking store {self.display_uri} cannot be reached ({store_errors.one_line(error)}); "
                f"measurements are kept in {self.spool.folder}, `llmtrack sync` sends them later"
            )
        self._retry_at = time.monotonic() + self._retry_wait_s

    def _back_online(self) -> None:
        if self.offline:
            self.offline = False
            problems = self.sync().problems
            rest = (
                f"; some records in {self.spool.folder} are still rejected ({'; '.join(problems)})" if problems else ""
            )
            self._notify(f"tracking store {self.display_uri} answers again{rest}")
