"""Run several experiments as studies of one suite, and report them together."""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rich.console import Console

from llmtrack.decide.verdicts import with_samples
from llmtrack.errors import LlmtrackError, in_words
from llmtrack.experiment import Experiment
from llmtrack.host.secrets import redact, secrets_of
from llmtrack.report.page.content import Member
from llmtrack.report.page.output import ReportContext
from llmtrack.report.page.reports import WrittenReport, write_suite
from llmtrack.report.terminal import hanging, print_line, width_of
from llmtrack.run.executors.executor import Executor
from llmtrack.run.study.announce import announcement, last_duration, print_support
from llmtrack.run.study.plan import make_plan
from llmtrack.run.study.progress import SuiteProgress
from llmtrack.run.study.study import Reported, StudyResult, end_study, opened, run_study
from llmtrack.run.study.suite_cache import MEASURE, SuiteCache
from llmtrack.spec.scenario import Scalar
from llmtrack.spec.serialization import digest
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.environment import environment, environment_id
from llmtrack.tracking.read.checkpoints import fetch_checkpoints
from llmtrack.tracking.read.query import tracked_runs
from llmtrack.tracking.store_errors import one_line
from llmtrack.tracking.write.running import WORK_TAG
from llmtrack.tracking.write.tracker import Study, Tracker


@dataclass(frozen=True, kw_only=True)
class SuiteResult(Reported):
    """Result of a suite.

    Attributes:
        study: the suite's own run.
        results: by experiment; None if it could not be completed.
        reasons: why not, by experiment.
    """

    study: Study
    results: Mapping[str, StudyResult | None]
    reasons: Mapping[str, str] = field(default_factory=dict)

    @property
    def incomplete(self) -> bool:
        """Whether an experiment could not be completed, or a scenario failed."""
        return any(result is None or result.failed for result in self.results.values())

    @property
    def exit_code(self) -> int:
        """0 if every scenario of every experiment was measured and reported, else 1."""
        reported = not self.problems and not any(result and result.problems for result in self.results.values())
        return int(self.incomplete or not reported)


def run_suite(
    experiments: Sequence[Experiment],
    *,
    question: str,
    settings: Mapping[str, Scalar],
    tracker: Tracker,
    executor: Executor,
    console: Console,
    remarks: Sequence[str] = (),
    resume: bool = False,
    same: str = MEASURE,
) -> SuiteResult:
    """Run experiments one after the other; a failure does not stop the rest.

    The executor keeps a model loaded between experiments that share it.

    Args:
        remarks: notes for the reader of the report about how it was measured.
        resume: take over finished runs, as in `run_study`.
        same: handling of scenarios shared by several experiments; see `llmtrack.run.study.suite_cache`.

    Raises:
        UsageError: a model or text is missing, or nothing can be planned.
        TrackingError: the store rejects the suite's run.
    """
    machine = executor.machine()
    _check(experiments, tracker, executor, machine)
    facts = environment(machine)
    ids = [sorted(scenario.scenario_id for scenario in experiment.scenarios) for experiment in experiments]
    work = digest(["suite", ids, environment_id(facts)])
    start = partial(tracker.start_study, "suite", question, settings, facts, tags={WORK_TAG: work})
    results: dict[str, StudyResult | None] = {}
    reasons: dict[str, str] = {}
    cache = SuiteCache(same, experiments, machine)
    durations = {experiment.name: last_duration(experiment, environment_id(facts)) for experiment in experiments}
    took = {name: seconds for name, seconds in durations.items() if seconds is not None}
    progress = SuiteProgress(
        {experiment.name: _scenario_count(experiment, machine) for experiment in experiments}, took
    )
    print_support(console, machine, [scenario for experiment in experiments for scenario in experiment.scenarios])
    for line in (announcement(experiments, progress.total, took), *remarks):
        print_line(console, hanging(line, width_of(console)))
    performed: list[Experiment] = []
    with opened(tracker, executor, console, work, resume, start) as suite:
        for planned in experiments:
            experiment = planned
            print_line(console, f"\n{progress.begin(experiment.name)}")
            try:
                experiment = cache.prepared(_derived(planned, results))
                results[experiment.name] = result = run_study(
                    experiment,
                    tracker=tracker,
                    executor=executor,
                    console=console,
                    suite_id=suite.study_id,
                    resume=resume,
                    suite_progress=progress,
                    cache=cache,
                )
                cache.learn(experiment, result.tracked)
            except Exception as error:
                # A bug in one experiment's plots or reading must not cost the hours of the others.
                if not isinstance(error, LlmtrackError):
                    print_line(console, redact("".join(traceback.format_exception(error)), secrets_of(os.environ)))
                print_line(console, f"  FAILED: {one_line(error)}")
                results[experiment.name] = None
                reasons[experiment.name] = in_words(error)
            performed.append(experiment)
        suite_result = SuiteResult(study=suite, results=results, reasons=reasons)
        reported = _report(suite_result, performed, tracker, console, question, remarks)
    return replace(suite_result, **vars(reported))


def _check(experiments: Sequence[Experiment], tracker: Tracker, executor: Executor, machine: Mapping[str, str]) -> None:
    """Reject a suite with a missing model or text, or without any plannable experiment."""
    rejections: list[LlmtrackError] = []
    for experiment in experiments:
        try:
            make_plan(experiment.scenarios, machine)
        except LlmtrackError as error:
            rejections.append(error)
    if rejections and len(rejections) == len(experiments):
        raise rejections[0]
    scenarios = [scenario for experiment in experiments for scenario in experiment.scenarios]
    fetch_checkpoints(scenarios, tracker.tracking_uri)
    executor.check(scenarios)


def _derived(experiment: Experiment, results: Mapping[str, StudyResult | None]) -> Experiment:
    """Return the experiment as derived from the runs tracked before it."""
    tracked = [result.tracked for result in results.values() if result is not None and result.tracked is not None]
    if experiment.follow is None or not tracked:
        return experiment
    return experiment.follow(Runs(run for runs in tracked for run in runs))


def _scenario_count(experiment: Experiment, machine: Mapping[str, str]) -> int:
    try:
        return sum(map(len, make_plan(experiment.scenarios, machine).groups))
    except LlmtrackError:
        return 0


def _report(
    result: SuiteResult,
    experiments: Sequence[Experiment],
    tracker: Tracker,
    console: Console,
    question: str,
    remarks: Sequence[str],
) -> Reported:
    """Read all runs back, print and track their joint report, and finish the suite's run."""
    reasons = [
        *(f"{name} could not be run: {reason}" for name, reason in result.reasons.items()),
        *(
            f"{name}: a part of its report could not be made: {problem}"
            for name, study in result.results.items()
            for problem in (study.problems if study else ())
        ),
    ]
    members: list[Member] = []

    def write(context: ReportContext) -> WrittenReport:
        members.extend(_members(result, experiments, tracker))
        return write_suite(members, question, context, remarks, reasons)

    reading, problems = end_study(result.study, tracker, console, result.incomplete, write)
    tracked = Runs(run for member in members for run in member.runs)
    return Reported(reading, tracked or None, problems)


def _members(result: SuiteResult, experiments: Sequence[Experiment], tracker: Tracker) -> list[Member]:
    runs_of_suite: Runs | None = None
    members = []
    for experiment in experiments:
        study = result.results.get(experiment.name)
        if study is not None and study.tracked is not None:
            # Including runs taken over from earlier studies, possibly of another experiment.
            runs = Runs(replace(run, experiment=experiment.name) for run in study.tracked)
        else:
            if runs_of_suite is None:
                tags = {"llmtrack.suite_id": result.study.study_id}
                runs_of_suite = with_samples(
                    tracked_runs(tags=tags, tracking_uri=tracker.tracking_uri), tracker.tracking_uri
                )
            runs = Runs(run for run in runs_of_suite if run.experiment == experiment.name)
        run_id = study.study.run_id if study else None
        members.append(Member(experiment, run_id, runs.in_order_of_study(), study.reading if study else ()))
    return members
