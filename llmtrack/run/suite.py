"""Run several experiments, each as its own study tied to one suite run, and put all of them into one table."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from llmtrack.errors import LlmtrackError
from llmtrack.experiment import Experiment
from llmtrack.report.compare import in_order_of_time
from llmtrack.report.table import summary_table, to_markdown
from llmtrack.report.write import print_report, write_report
from llmtrack.run.executors import Executor
from llmtrack.run.study import StudyResult, killed_if_interrupted, run_study
from llmtrack.scenario import Scalar
from llmtrack.tracking.environment import environment
from llmtrack.tracking.query import runs
from llmtrack.tracking.tracker import Study, Tracker


@dataclass(frozen=True)
class SuiteResult:
    """How a suite ended.

    Attributes:
        study: the suite's own run.
        results: how each experiment ended, by name; None where it could not run at all.
    """

    study: Study
    results: Mapping[str, StudyResult | None]

    @property
    def exit_code(self) -> int:
        """0 if every scenario of every experiment was measured, else 1."""
        return int(any(result is None or result.exit_code for result in self.results.values()))


def run_suite(
    experiments: Sequence[Experiment],
    *,
    question: str,
    settings: Mapping[str, Scalar],
    tracker: Tracker,
    executor: Executor,
    console: Console,
) -> SuiteResult:
    """Run experiments one after the other; one that fails does not stop the rest.

    Raises:
        TrackingError: the store refuses the suite's run.
    """
    suite = tracker.start_study("suite", question, settings, environment(executor.machine()))
    results: dict[str, StudyResult | None] = {}
    with killed_if_interrupted(tracker, suite, executor):
        for number, experiment in enumerate(experiments, start=1):
            console.print(f"\n[{number}/{len(experiments)}] ", end="", markup=False)
            try:
                results[experiment.name] = run_study(
                    experiment, tracker=tracker, executor=executor, console=console, suite_id=suite.study_id
                )
            except Exception as error:
                # A mistake in one experiment's plots or reading must not cost the hours of the others.
                if not isinstance(error, LlmtrackError):
                    console.print(escape("".join(traceback.format_exception(error))), soft_wrap=True)
                console.print(f"  FAILED: {escape(str(error))}", soft_wrap=True)
                results[experiment.name] = None
        result = SuiteResult(suite, results)
        _report(result, tracker, console)
    return result


def _report(result: SuiteResult, tracker: Tracker, console: Console) -> None:
    outcome = "failed" if result.exit_code else "finished"
    if tracker.offline:
        tracker.finish_study(result.study, outcome)
        return
    suite = result.study
    search = f"tags.`llmtrack.suite_id` = '{suite.study_id}'"
    tracked = in_order_of_time(runs(search=search, tracking_uri=tracker.tracking_uri))
    if tracked.empty:
        tracker.finish_study(suite, outcome, note="No experiment could be run.")
        return
    table = summary_table(tracked)
    takeaways = [
        f"{name}: {each.reading[0]}" for name, each in result.results.items() if each and each.reading
    ]
    takeaways += [f"{name} could not be run." for name, each in result.results.items() if each is None]
    print_report(console, "suite", table, takeaways)
    links = tuple(f"#/experiments/{suite.experiment_id}/runs/{run_id}" for run_id in table.run_ids)
    note = to_markdown(table, links) + "\n" + "".join(f"- {line}\n" for line in takeaways)
    with tempfile.TemporaryDirectory() as folder:
        files = write_report(Path(folder), "llmtrack suite", table, tracked, takeaways)
        tracker.finish_study(suite, outcome, note=note, files=files)
