"""Turn studies and their scenarios into records, and have them brought to MLflow."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets as random_source
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.host.signals import stop_in_order
from llmtrack.metrics import ASKED_TAG
from llmtrack.spec.outcome import Failure, Measurement, Outcome, StepValues
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.tracked.run import FAILED, FINISHED, KILLED
from llmtrack.tracking import owner, sync
from llmtrack.tracking.delivery import Delivery
from llmtrack.tracking.environment import environment_tags
from llmtrack.tracking.files import clean_content, safe_path
from llmtrack.tracking.limits import fit_key
from llmtrack.tracking.mlmodel import mlflow_model
from llmtrack.tracking.push import now_ms, push_steps, reopen
from llmtrack.tracking.records import (
    RunRecord,
    StudyContext,
    begun_record,
    same_as_record,
    scenario_record,
    study_name,
    study_record,
)
from llmtrack.tracking.spool import Notify, Spool, to_stderr
from llmtrack.tracking.store import resolve_tracking_uri

if TYPE_CHECKING:
    from mlflow.entities import Run

STATUS_OF_OUTCOME = {"finished": FINISHED, "failed": FAILED, "killed": KILLED}

# The names that MLflow makes up, such as nosy-bear-123.
_MADE_UP_NAME = re.compile(r"[a-z]+-[a-z]+-\d+")
_RUN_NAME = "mlflow.runName"


@dataclass(frozen=True)
class Study:
    """One execution of an experiment, being tracked.

    Attributes:
        study_id: such as `prompt_length-20261128-014301-3f2a`.
        name: name of its run.
        experiment: name of the llmtrack experiment.
        run_id: its MLflow run, or None while the store cannot be reached.
        experiment_id: the MLflow experiment, or None while the store cannot be reached.
        context: what all its runs have in common.
        record: what is written of its own run so far.
    """

    study_id: str
    name: str
    experiment: str
    run_id: str | None
    experiment_id: str | None
    context: StudyContext
    record: RunRecord


class Tracker:
    """Writes to one MLflow experiment of one store; open it with `Tracker.open`.

    Uses run ids only, no active run of MLflow's, so that any thread may use it.

    Attributes:
        delivery: the way there.
    """

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self._delivered: dict[str, list[StepValues]] = {}
        # Models that were really loaded, by the study or suite.
        self._models: dict[str, list[str]] = {}
        self._finished: set[str] = set()

    @classmethod
    def open(
        cls,
        tracking_uri: str | None = None,
        experiment: str | None = None,
        spool: Path | None = None,
        notify: Notify = to_stderr,
    ) -> Tracker:
        """Open the store and the MLflow experiment to write to.

        Under `mlflow run` (MLFLOW_RUN_ID is set) the first study joins that run, and the experiment is the
        run's. Otherwise it is the argument, else MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID, else
        `llmtrack`. If a server does not answer, the tracker is offline: records stay in the spool.

        Args:
            tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.
            experiment: name of the MLflow experiment.
            spool: folder of the spool; see `llmtrack.tracking.spool.Spool`.
            notify: is given messages for the user, one line each.

        Raises:
            UsageError: the tracking URI is not accepted.
            TrackingError: the store refuses: no such database folder, no permission, a deleted experiment.
        """
        joins = os.environ.get("MLFLOW_RUN_ID") or None
        place = Spool(spool, notify)
        delivery = Delivery(resolve_tracking_uri(tracking_uri), experiment or "", place, notify, joins)
        delivery.open()
        return cls(delivery)

    @property
    def tracking_uri(self) -> str:
        """The store, resolved; it may hold credentials."""
        return self.delivery.tracking_uri

    @property
    def offline(self) -> bool:
        """Whether the store could not be reached; records stay in the spool meanwhile."""
        return self.delivery.offline

    @property
    def spool(self) -> Spool:
        """Where records are kept until they are in MLflow."""
        return self.delivery.spool

    def start_study(
        self,
        experiment: str,
        question: str,
        settings: Mapping[str, Scalar],
        environment: Mapping[str, str],
        suite_id: str | None = None,
        tags: Mapping[str, str] | None = None,
        asked: Mapping[str, str] | None = None,
    ) -> Study:
        """Open the run of a study, in state RUNNING.

        Args:
            experiment: name of the llmtrack experiment.
            question: what it asks.
            settings: its settings as resolved; tracked as params `cfg.NAME`.
            environment: facts of `llmtrack.tracking.environment.environment`.
            suite_id: id of the suite it is part of.
            tags: further tags of the study's own run.
            asked: parameters that are not as by default; every run of the study tells them.

        Raises:
            TrackingError: the spool cannot be written, or the store refuses.
        """
        study_id = new_study_id(experiment)
        shared = environment_tags(environment) | {owner.TAG: owner.this_process()}
        if asked is not None:
            shared[ASKED_TAG] = json.dumps(dict(asked))
        context = StudyContext(study_id, experiment, suite_id, shared)
        record = study_record(context, question, settings, now_ms())
        record = dataclasses.replace(record, tags={**record.tags, **(tags or {})})
        joined, self.delivery.joins = self.delivery.joins, None
        if joined is not None:
            # As MLflow's own start_run does: the next one that looks must not join the same run.
            os.environ.pop("MLFLOW_RUN_ID", None)
            record = self._joining(record, joined)
        else:
            record = _named(record, record.run_name)
        run_id = self.delivery.write(record, run_id=joined)
        return Study(
            study_id=study_id,
            name=record.run_name,
            experiment=experiment,
            run_id=run_id or joined,
            experiment_id=self.delivery.experiment_id,
            context=context,
            record=record,
        )

    def log(self, study: Study, outcome: Outcome, remark: str = "") -> str | None:
        """Write the run of a measured, or failed, scenario; return its id, or None if it stays in the spool.

        Args:
            study: the study of it.
            outcome: what became of it.
            remark: end of its name in MLflow's list, where several runs are of one scenario.

        Raises:
            TrackingError: the spool cannot be written.
        """
        files = {} if isinstance(outcome, Failure) else {k: Path(v) for k, v in outcome.files.items()}
        with ExitStack() as made:
            if isinstance(outcome, Measurement) and "model_id" in outcome.facts:
                for own in filter(None, (study.study_id, study.context.suite_id)):
                    self._models.setdefault(own, []).append(str(outcome.facts["model_id"]))
            if isinstance(outcome, Measurement) and outcome.model_folder:
                files |= made.enter_context(mlflow_model(Path(outcome.model_folder)))
            return self._log(study, outcome, files, remark)

    def _log(self, study: Study, outcome: Outcome, files: Mapping[str, Path], remark: str) -> str | None:
        record = scenario_record(outcome, study.context, remark)
        delivered = {(row.step, row.at) for row in self._delivered.pop(record.record_id, ())}
        left = tuple(row for row in record.steps if (row.step, row.at) not in delivered)
        record = dataclasses.replace(record, steps=left)
        run_id = self.delivery.run_of(outcome.run_key) if outcome.run_key else None
        return self.delivery.write(record, run_id=run_id, files=files, known=bool(outcome.run_key))

    def begin(
        self,
        study: Study,
        scenario: Scenario,
        run_key: str,
        facts: Mapping[str, Scalar],
        tags: Mapping[str, str],
        started_at: float,
        resumed: bool = False,
    ) -> str | None:
        """Open the run of a scenario, to be written to while it goes on, or go on with the run of its key.

        What `log_steps` and an outcome with the same key write goes to that run. Return its id, or None if it
        cannot be opened now; then all is written with the outcome.

        Args:
            study: the study of both.
            scenario: what was asked.
            run_key: identity of the run.
            facts: what is really used.
            tags: provenance.
            started_at: seconds since the epoch, of the first beginning.
            resumed: whether it was ended before.

        Raises:
            TrackingError: the spool cannot be written.
        """
        record = begun_record(scenario, run_key, facts, tags, started_at, study.context)
        run_id = self.delivery.write(record, known=True)
        self._delivered[run_key] = []
        if resumed and run_id is not None:
            self.delivery.attempt(lambda client: reopen(client, run_id))
        return run_id

    def log_steps(self, run_key: str, rows: Sequence[StepValues]) -> None:
        """Write steps to a run that `begin` opened; what cannot be written now is written with the outcome."""
        run_id = self.delivery.run_of(run_key)
        if run_id is not None and self.delivery.attempt(lambda client: push_steps(client, run_id, rows)):
            self._delivered.setdefault(run_key, []).extend(rows)

    def log_same_as(
        self, study: Study, scenario: Scenario, facts: Mapping[str, Scalar], same_as: str, note: str
    ) -> str | None:
        """Write the run of a scenario that is not measured because another's measurement holds for it.

        Args:
            study: the study of both.
            scenario: what was asked.
            facts: what would have been used, such as the dtype's label.
            same_as: name of the scenario that was measured.
            note: why both are the same, in one line.

        Raises:
            TrackingError: the spool cannot be written.
        """
        return self.delivery.write(same_as_record(scenario, facts, same_as, note, study.context, time.time()))

    def finish_study(
        self,
        study: Study,
        outcome: str,
        note: str = "",
        files: Mapping[str, Path] | None = None,
        metrics: Mapping[str, float] | None = None,
        reason: str = "",
        warnings: Sequence[str] = (),
    ) -> str | None:
        """Write a study's results and end its run; return its id, or None if it stays in the spool.

        Args:
            study: the study.
            outcome: `finished`, `failed` or `killed`.
            note: Markdown that MLflow shows on the run's page.
            files: artifact path to the file to upload.
            metrics: values of the study as a whole.
            reason: why it failed or was killed, in one line.
            warnings: what is not as it should be, such as a part of its report that could not be made.

        Raises:
            KeyError: the outcome is none of the three.
            TrackingError: the spool cannot be written.
        """
        tags = {**study.record.tags, "llmtrack.outcome": outcome}
        if note:
            tags["mlflow.note.content"] = note
        if reason:
            tags["llmtrack.reason"] = reason
        if warnings:
            tags["llmtrack.warnings"] = "\n".join(warnings)
        record = dataclasses.replace(
            study.record,
            status=STATUS_OF_OUTCOME[outcome],
            end_ms=now_ms(),
            tags=tags,
            metrics=dict(metrics or {}),
        )
        if _RUN_NAME in tags and (models := self._models.get(study.study_id)):
            record = _named(record, study_name(study.context, models))
        kept = {safe_path(name): clean_content(path, self.delivery.secrets) for name, path in (files or {}).items()}
        # A signal waits: what is all there, and only has to be sent, does not become what was ended early.
        with stop_in_order():
            run_id = self.delivery.write(record, run_id=study.run_id, files=kept, known=True, last=True)
            self._finished.add(study.study_id)
            if run_id is not None and self.spool.names():
                self.sync()  # What was kept while the store did not answer.
        return run_id

    def has_finished(self, study: Study) -> bool:
        """Return whether the end of a study was written, or is kept in the spool."""
        return study.study_id in self._finished

    def sync(self) -> sync.SyncResult:
        """Send everything in the spool that belongs to this store; see `llmtrack.tracking.sync.sync`."""
        return self.delivery.sync()

    def _joining(self, record: RunRecord, run_id: str) -> RunRecord:
        """Adapt a study's record to a run that has values already, which MLflow would not let us change."""
        runs: list[Run] = []
        if not self.delivery.attempt(lambda client: runs.append(client.get_run(run_id))):
            return record
        (run,) = runs
        present = run.data.params
        refused = {k: v for k, v in record.params.items() if present.get(fit_key(k), str(v)) != str(v)}
        tags = dict(record.tags)
        if refused:
            lines = (f"param {k}: {v} left out, the run has {present[fit_key(k)]}" for k, v in refused.items())
            tags["llmtrack.omitted"] = "\n".join(lines)
        if _MADE_UP_NAME.fullmatch(run.info.run_name or ""):
            tags[_RUN_NAME] = record.run_name
        params = {key: value for key, value in record.params.items() if key not in refused}
        return dataclasses.replace(record, start_ms=run.info.start_time, params=params, tags=tags)


def _named(record: RunRecord, name: str) -> RunRecord:
    """Return the record with a name that is ours to give: MLflow takes it from the tag, also later."""
    return dataclasses.replace(record, run_name=name, tags={**record.tags, _RUN_NAME: name})


def new_study_id(experiment: str) -> str:
    """Return an id that names the experiment and sorts by time: `prompt_length-20261128-014301-3f2a`."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return f"{experiment}-{stamp}-{random_source.token_hex(2)}"
