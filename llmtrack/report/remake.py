"""Rebuild the report of a study or suite from its tracked runs, and store it with its run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from llmtrack.decide.verdicts import with_samples
from llmtrack.experiment import Declaration, Experiment, draw_nothing
from llmtrack.host.console import make_folder
from llmtrack.host.entry_points import EXPERIMENTS, named_experiment
from llmtrack.metrics import SETTING_PREFIX
from llmtrack.report.page.gather import Member
from llmtrack.report.page.place import Parts, Place
from llmtrack.report.page.study import Written, write_study
from llmtrack.report.page.suite import write_suite
from llmtrack.report.sentences.reading import doubts
from llmtrack.report.terminal import say
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import SUITE, study_run, tracked_runs
from llmtrack.tracking.store import experiment_of_run, open_existing, resolve_tracking_uri
from llmtrack.tracking.write.amend import add_report


def remake_report(
    study: str, console: Console, tracking_uri: str | None = None, output: Path | None = None
) -> tuple[str, ...]:
    """Print the report of a study or suite, and store its table, plots and page with its run.

    Args:
        study: its id, the id of its run, or `latest`.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.
        output: folder for a copy of the files.

    Returns:
        Failed parts with the reason, one line each.

    Raises:
        UsageError: there is no such study.
        TrackingError: the store cannot be used.
    """
    uri = resolve_tracking_uri(tracking_uri)
    own = study_run(study, uri)
    parts = Parts()
    with ExitStack() as stack:
        folder = output or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_folder(folder)
        make = _suite if own.experiment == SUITE else _study
        run_id = own.run_id
        experiment_id, _ = experiment_of_run(open_existing(uri), run_id)
        written = make(own, Place(run_id, experiment_id, uri, folder, console, parts))
        add_report(run_id, written.note, written.files, parts.problems, uri, written.metrics)
    if output is not None:
        say(console, f"Written: {', '.join(map(str, written.files.values()))}")
    return tuple(parts.problems)


def _study(own: Run, place: Place) -> Written:
    uri = place.tracking_uri
    tracked = with_samples(_in_order(tracked_runs(study=own.study_id, tracking_uri=uri)), uri)
    return write_study(_experiment(own, place.parts), tracked, place)


def _suite(own: Run, place: Place) -> Written:
    uri, parts = place.tracking_uri, place.parts
    of_suite = {"llmtrack.suite_id": own.study_id}
    found = with_samples(_in_order(tracked_runs(tags=of_suite, tracking_uri=uri)), uri)
    members = []
    for study in _in_order(tracked_runs(kind="study", tags=of_suite, tracking_uri=uri)):
        experiment = _experiment(study, parts)
        tracked = Runs(run for run in found if run.study_id == study.study_id)
        reading: Sequence[str] = ()
        with parts.part(f"reading of {experiment.name}"):
            reading = experiment.read(tracked)
        members.append(Member(experiment, study.run_id, tracked, tuple(reading)))
    quick = str(own.get(f"{SETTING_PREFIX}quick")).lower() == "true"
    module = named_experiment(SUITE)
    remarks = []
    if quick and module is not None:
        with parts.part("remarks"):
            remarks = [module.quick_remark([member.experiment.name for member in members])]
    return write_suite(members, own.question, place, remarks)


def _experiment(own: Run, parts: Parts) -> Experiment:
    """Return the plots and reading of an experiment, as far as available."""
    name = own.experiment
    module = None
    with parts.part("plots and reading"):
        module = named_experiment(name)
    if module is None and not parts.problems:
        parts.problems.append(f"plots and reading: {EXPERIMENTS}/{name}.py is not here; run it in the project's folder")
    settings = {
        key.removeprefix(SETTING_PREFIX): str(value)
        for key, value in sorted(own.params.items())
        if key.startswith(SETTING_PREFIX) and value is not None
    }
    declared: Declaration[Any] | None = getattr(module, "DECLARED", None)
    return Experiment(
        name=name,
        question=own.question,
        scenarios=(),
        plots=declared.plots if declared else draw_nothing,
        reading=declared.reading if declared else doubts,
        settings=settings,
        table=declared.table if declared else None,
        typed=declared is None or declared.typed,
    )


def _in_order(tracked: Runs) -> Runs:
    """Sort runs as their study does; of a remeasured scenario keep only the newest (they come first)."""
    kept = set(tracked.first_of_each("study_id", "scenario"))
    return tracked.where(lambda run: not run.scenario or run in kept).in_order_of_study()
