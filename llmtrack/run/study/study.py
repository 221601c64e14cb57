"""Run an experiment as a tracked study: measure, track each outcome at once, and report the tracked runs."""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from llmtrack.decide.verdicts import with_samples
from llmtrack.experiment import Experiment
from llmtrack.host.console import neutral_console, on_one_line
from llmtrack.host.formatting import plural, truncate
from llmtrack.host.signals import defer_signals
from llmtrack.report.page.output import Parts, ReportContext
from llmtrack.report.page.reports import WrittenReport, print_incomplete, write_study
from llmtrack.report.sentences.reading import outcome_line, outcome_note
from llmtrack.report.terminal import hanging, print_line, width_of
from llmtrack.run.executors.executor import Executor
from llmtrack.run.study.announce import announcement, last_duration, print_support, record_duration
from llmtrack.run.study.groups import run_groups
from llmtrack.run.study.journal import Journal
from llmtrack.run.study.plan import Plan, SameAs, make_plan, model_folders
from llmtrack.run.study.progress import StudyProgress, SuiteProgress
from llmtrack.run.study.resume import finished_runs
from llmtrack.run.study.suite_cache import SuiteCache
from llmtrack.spec.events import Begun, Event, Steps
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.serialization import digest
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.environment import environment, environment_id
from llmtrack.tracking.read.checkpoints import fetch_checkpoints
from llmtrack.tracking.read.query import taken_over_tag, tracked_runs
from llmtrack.tracking.write.running import WORK_TAG, open_claimed
from llmtrack.tracking.write.tracker import Study, Tracker


@dataclass(frozen=True)
class Reported:
    """Result of reporting a study.

    Attributes:
        reading: interpretation of the tracked runs; empty if they could not be read.
        tracked: the study's runs as read back, including those taken over from earlier studies, or None.
        problems: parts of the report that failed, and why.
    """

    reading: tuple[str, ...] = ()
    tracked: Runs | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudyResult(Reported):
    """Result of a study.

    Attributes:
        study: identity in the tracking store.
        refused: number of failed scenarios with a broken backend plug-in.
    """

    study: Study
    measured: int
    failed: int
    refused: int = 0

    @property
    def exit_code(self) -> int:
        """0 if every scenario was measured and reported, 2 if none could be because of a broken plug-in, else 1."""
        if self.refused and not self.measured and self.refused == self.failed:
            return 2
        return 1 if self.failed or self.problems else 0


def run_study(
    experiment: Experiment,
    *,
    tracker: Tracker,
    executor: Executor,
    console: Console,
    suite_id: str | None = None,
    resume: bool = False,
    suite_progress: SuiteProgress | None = None,
    cache: SuiteCache | None = None,
) -> StudyResult:
    """Measure every scenario of an experiment and track it.

    A scenario that fails is tracked as a FAILED run and the others continue. On interruption, what is measured stays
    tracked and the study ends as killed.

    Args:
        resume: take over finished runs of the same scenario, work and machine instead of measuring again.
        cache: measurements of its suite, to reuse or pool.

    Raises:
        UsageError: the scenarios cannot be planned, or a model refers to a missing run.
        TrackingError: the store rejects the study.
    """
    began = time.monotonic()
    prepared = _prepare(experiment, tracker, executor, console, suite_id, resume, cache)
    ids = sorted(scenario.scenario_id for scenario in experiment.scenarios)
    work = digest([ids, environment_id(prepared.environment)])
    start = partial(
        tracker.start_study,
        experiment.name,
        experiment.question,
        experiment.settings,
        prepared.environment,
        suite_id=suite_id,
        asked=experiment.asked,
        scenarios=[scenario.name for scenario in experiment.scenarios],
        tags={WORK_TAG: work} | taken_over_tag(prepared.earlier),
    )
    with opened(tracker, executor, console, work, resume, start) as study:
        with StudyProgress(console, prepared.scenarios, suite_progress, prepared.seconds) as progress:
            outcomes = _Outcomes(experiment, study, tracker, progress, cache)
            _measure(prepared, executor, outcomes, resume)
        reported = report_study(experiment, study, tracker, console, bool(outcomes.failed), prepared.earlier)
    if not prepared.earlier and not outcomes.failed and not reported.problems:
        record_duration(experiment, environment_id(prepared.environment), time.monotonic() - began)
    return StudyResult(
        study=study,
        measured=outcomes.measured,
        failed=outcomes.failed,
        refused=outcomes.refused,
        **vars(reported),
    )


@dataclass(frozen=True)
class _Prepared:
    """What a study will measure.

    Attributes:
        seconds: last duration; None if unknown.
    """

    plan: Plan
    environment: Mapping[str, str]
    earlier: Runs
    seconds: float | None

    @property
    def scenarios(self) -> int:
        """Number of scenarios to measure."""
        return sum(map(len, self.plan.groups))


def _prepare(
    experiment: Experiment,
    tracker: Tracker,
    executor: Executor,
    console: Console,
    suite_id: str | None,
    resume: bool,
    cache: SuiteCache | None,
) -> _Prepared:
    machine = executor.machine()
    fetch_checkpoints(experiment.scenarios, tracker.tracking_uri)
    plan = make_plan(experiment.scenarios, machine)
    executor.check(experiment.scenarios)
    facts = environment(machine, model_folders(experiment.scenarios))
    head = Text.assemble((on_one_line(experiment.name), "bold"), ": ", on_one_line(experiment.question))
    console.print(head, soft_wrap=True)
    if suite_id is None:
        print_support(console, machine, experiment.scenarios)
    earlier = Runs()
    if resume and not tracker.offline:
        earlier = finished_runs(experiment.scenarios, environment_id(facts), executor.identify, tracker.tracking_uri)
        plan = plan.without(set(earlier.scenarios))
        print_line(
            console,
            f"  resume: {len(earlier)} of {plural(len(experiment.scenarios), 'scenario')} "
            f"{'is' if len(earlier) == 1 else 'are'} measured already and skipped",
        )
    reused = cache.reused([scenario for group in plan.groups for scenario in group]) if cache else []
    for run in reused:
        earlier_run = f"{run.text('experiment')}, run {run.run_id}"
        print_line(console, f"  {run.scenario}: not measured again, reused: {earlier_run}")
    plan = plan.without({run.scenario for run in reused})
    earlier = Runs((*earlier, *reused))
    seconds = None if earlier else last_duration(experiment, environment_id(facts))
    prepared = _Prepared(plan, facts, earlier, seconds)
    if suite_id is None and not earlier:
        known = {} if seconds is None else {experiment.name: seconds}
        print_line(console, hanging(announcement([experiment], prepared.scenarios, known), width_of(console)))
    return prepared


class _Outcomes:
    """Tracks and prints the outcomes of a study as they arrive, and counts them."""

    def __init__(
        self,
        experiment: Experiment,
        study: Study,
        tracker: Tracker,
        progress: StudyProgress,
        cache: SuiteCache | None,
    ) -> None:
        self.measured = self.failed = self.refused = 0
        self._experiment, self.study, self.tracker = experiment, study, tracker
        self._progress, self._cache = progress, cache

    def on_event(self, event: Event) -> None:
        """Handle an event of the executor."""
        self._progress.on_event(event)
        if isinstance(event, Begun):
            self.tracker.begin(self.study, **vars(event))
        elif isinstance(event, Steps):
            self.tracker.log_steps(event.run_key, event.rows)
        elif isinstance(event, Measurement):
            self._track(self._cache.pooled(self._experiment.name, event) if self._cache else event)
        elif isinstance(event, Failure):
            self.failed += 1
            self.refused += event.kind == "extension"
            self.tracker.log(self.study, event, note=outcome_note(event))
            self._progress.ended(event.scenario.name, outcome_line(event))

    def _track(self, measurement: Measurement) -> None:
        self.measured += 1
        self.tracker.log(self.study, measurement, note=outcome_note(measurement))
        self._progress.ended(measurement.scenario.name, outcome_line(measurement))
        if measurement.sample_text:
            self._progress.line(f"    sample: {truncate(on_one_line(measurement.sample_text), 100)}")
        for warning in measurement.warnings:
            self._progress.warn(warning)

    def on_disturbed(self, first: Measurement) -> None:
        """Track a disturbed measurement that will be remeasured."""
        self.tracker.log(self.study, first, remark=", disturbed", note=outcome_note(first))
        self._progress.line(f"{outcome_line(first)}: disturbed, will be remeasured")

    def skip(self, same: SameAs) -> None:
        """Track a skipped scenario that equals another one."""
        note = f"same as {same.measured.name}: {same.dtype_label}"
        self.tracker.log_same_as(self.study, same.scenario, {"dtype": same.dtype_label}, same.measured.name, note)
        self._progress.line(f"  {same.scenario.name}: not measured again, {note}")


def _measure(prepared: _Prepared, executor: Executor, outcomes: _Outcomes, resume: bool) -> None:
    """Measure the plan; if interrupted, completed rounds remain in a journal to resume from."""
    groups = prepared.plan.groups
    ids = [[scenario.scenario_id for scenario in group] for group in groups]
    key = digest([ids, environment_id(prepared.environment)])
    path = outcomes.tracker.spool.folder.parent / "rounds" / f"{key}.jsonl"
    run_groups(executor, groups, outcomes.on_event, outcomes.on_disturbed, partial(Journal, path, resume))
    for skipped in prepared.plan.same:
        outcomes.skip(skipped)


def report_study(
    experiment: Experiment,
    study: Study,
    tracker: Tracker,
    console: Console,
    failed: bool,
    earlier: Sequence[Run] = (),
) -> Reported:
    """Read the study's runs back, print and track table, plots and reading, and finish the study.

    Runs taken over from earlier studies count as this one's.
    """
    tracked = None

    def write(context: ReportContext) -> WrittenReport:
        nonlocal tracked
        tracked = _read_back(study, tracker, earlier)
        return write_study(experiment, tracked, context)

    reading, problems = end_study(study, tracker, console, failed, write)
    return Reported(reading, tracked, problems)


def end_study(
    study: Study, tracker: Tracker, console: Console, failed: bool, write: Callable[[ReportContext], WrittenReport]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Build, print and track the report of a study or suite, and finish its run.

    A failure of the report is only a warning: the study ends as its measurements did. There is no report while the
    store is unreachable.

    Args:
        write: read the runs, print, and write files.

    Returns:
        The reading, and the parts of the report that failed, with the reason.
    """
    outcome = "failed" if failed else "finished"
    if tracker.offline:
        run_id = tracker.finish_study(study, outcome)
        if tracker.offline:
            return (), ()
        # The store is reachable again.
        study = replace(study, run_id=run_id or study.run_id, experiment_id=tracker.delivery.experiment_id)
    parts, written = Parts(), WrittenReport()
    with ExitStack() as stack:
        with parts.part("report"):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            # A console on stderr only shows progress; its caller displays the report itself.
            shown = neutral_console(file=io.StringIO(), width=200) if console.stderr else console
            context = ReportContext(study.run_id, study.experiment_id, tracker.tracking_uri, folder, shown, parts)
            written = write(context)
        tracker.finish_study(
            study,
            outcome,
            note=written.note,
            files=written.files,
            metrics=written.metrics,
            warnings=parts.problems,
        )
    waiting = 0 if tracker.offline else tracker.delivery.waiting(study.study_id)
    if waiting:
        parts.problems.append(
            f"{plural(waiting, 'record')} of it could not be sent, and what is kept waits in {tracker.spool.folder}"
        )
    print_incomplete(console, study.study_id, parts.problems, spooled=tracker.offline or waiting > 0)
    return written.reading, tuple(parts.problems)


def _read_back(study: Study, tracker: Tracker, earlier: Sequence[Run]) -> Runs:
    tracked = tracked_runs(study=study.study_id, tracking_uri=tracker.tracking_uri)
    if earlier:
        ids = {run.run_id for run in earlier}
        measured_here = tracked.where(lambda run: run.run_id not in ids)
        tracked = Runs((*measured_here, *(replace(run, study_id=study.study_id) for run in earlier)))
    # Newest first: of a remeasured baseline, only the newer run counts.
    return with_samples(tracked.first_of_each("scenario").in_order_of_study(), tracker.tracking_uri)


@contextmanager
def opened(
    tracker: Tracker, executor: Executor, console: Console, work: str, resume: bool, start: Callable[[], Study]
) -> Iterator[Study]:
    """Open the study of a piece of work; end it as killed on a signal, or as failed on an error.

    Signals are deferred while it is opened and ended, so that it is never left running.

    Args:
        work: identity of what is measured, which only one process may resume at a time.
    """
    study: Study | None = None
    try:
        with defer_signals():
            study = open_claimed(tracker, work, resume, partial(print_line, console), start)
        yield study
    except BaseException as error:
        with defer_signals():
            executor.close()
            if study is not None and not tracker.has_finished(study):
                killed = is_signal(error)
                reason = f"ended early by {type(error).__name__}{f': {error}' if str(error) else ''}"
                tracker.finish_study(study, "killed" if killed else "failed", reason=reason)
        raise


def is_signal(error: BaseException | None) -> bool:
    """Return whether a signal ended the work, even if an error on the way out, such as a closed terminal, masks it."""
    return error is not None and (not isinstance(error, Exception) or is_signal(error.__context__))
