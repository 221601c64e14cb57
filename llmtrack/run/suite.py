"""Run several experiments, each as its own study tied to one suite run, and report all of them together."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from llmtrack.errors import LlmtrackError, in_words
from llmtrack.experiment import Experiment
from llmtrack.report.gather import section, suite_report
from llmtrack.report.html import Section
from llmtrack.report.table import summary_table, to_markdown
from llmtrack.report.takeaways import takeaways
from llmtrack.report.write import print_report, write_html, write_report
from llmtrack.run.executors import Executor
from llmtrack.run.plan import make_plan
from llmtrack.run.progress import SuiteProgress
from llmtrack.run.study import StudyResult, in_order, killed_if_interrupted, run_study
from llmtrack.scenario import Scalar
from llmtrack.tracking.environment import environment
from llmtrack.tracking.query import runs
from llmtrack.tracking.series import series
from llmtrack.tracking.texts import artifact_text
from llmtrack.tracking.tracker import Study, Tracker

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class SuiteResult:
    """How a suite ended.

    Attributes:
        study: the suite's own run.
        results: how each experiment ended, by name; None where it could not run to its end.
        reasons: why not, by name.
    """

    study: Study
    results: Mapping[str, StudyResult | None]
    reasons: Mapping[str, str] = field(default_factory=dict)

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
    remarks: Sequence[str] = (),
    resume: bool = False,
) -> SuiteResult:
    """Run experiments one after the other; one that fails does not stop the rest.

    The executor keeps its loaded model from one experiment to the next, as long as they want the same.

    Args:
        experiments: in the order to run them.
        question: what all of it asks.
        settings: tracked with the suite.
        tracker: where it is tracked.
        executor: measures.
        console: where progress and the report are printed.
        remarks: what the reader of the report must know of how it was measured.
        resume: take over finished runs, as `run_study` does.

    Raises:
        TrackingError: the store refuses the suite's run.
    """
    machine = executor.machine()
    suite = tracker.start_study("suite", question, settings, environment(machine))
    results: dict[str, StudyResult | None] = {}
    reasons: dict[str, str] = {}
    for remark in remarks:
        console.print(escape(remark), soft_wrap=True)
    progress = SuiteProgress({each.name: _planned(each, machine) for each in experiments})
    run: list[Experiment] = []
    with killed_if_interrupted(tracker, suite, executor):
        for planned in experiments:
            experiment = planned
            console.print(f"\n{progress.begin(experiment.name)}", markup=False)
            try:
                experiment = _following(planned, results)
                results[experiment.name] = run_study(
                    experiment,
                    tracker=tracker,
                    executor=executor,
                    console=console,
                    suite_id=suite.study_id,
                    resume=resume,
                    suite_progress=progress,
                )
            except Exception as error:
                # A mistake in one experiment's plots or reading must not cost the hours of the others.
                if not isinstance(error, LlmtrackError):
                    console.print(escape("".join(traceback.format_exception(error))), soft_wrap=True)
                console.print(f"  FAILED: {escape(str(error))}", soft_wrap=True)
                results[experiment.name] = None
                reasons[experiment.name] = in_words(error)
            run.append(experiment)
        result = SuiteResult(suite, results, reasons)
        _report(result, run, tracker, console, question, remarks)
    return result


def _following(experiment: Experiment, results: Mapping[str, StudyResult | None]) -> Experiment:
    """Return the experiment as it follows from what was tracked before it."""
    import pandas as pd

    tracked = [each.tracked for each in results.values() if each is not None and each.tracked is not None]
    if experiment.follow is None or not tracked:
        return experiment
    return experiment.follow(pd.concat(tracked, ignore_index=True))


def _planned(experiment: Experiment, machine: Mapping[str, str]) -> int:
    """Return how many scenarios will be measured; none of an experiment that will be refused."""
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
) -> None:
    """Read all runs back, print and track what they say together, and finish the suite's run."""
    outcome = "failed" if result.exit_code else "finished"
    if tracker.offline:
        tracker.finish_study(result.study, outcome)
        return
    suite = result.study
    tracked = _tracked(result, experiments, tracker)
    if tracked.empty:
        tracker.finish_study(suite, outcome, note="No experiment could be run.")
        return
    table = summary_table(tracked)
    lines = takeaways(tracked)
    lines += [f"{name} could not be run: {reason}" for name, reason in result.reasons.items()]
    print_report(console, "suite", table, lines)
    links = tuple(f"#/experiments/{suite.experiment_id}/runs/{run_id}" for run_id in table.run_ids)
    note = "".join(f"- {line}\n" for line in (*remarks, *lines)) + "\n" + to_markdown(table, links)
    sections = tuple(_sections(result, experiments, tracked, tracker, console))
    report = suite_report(question, suite.run_id, tracked, lines, sections, remarks)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write_report(folder, "llmtrack suite", table, tracked, lines)
        files["report.html"] = write_html(folder, report)
        for each in sections:
            for plot in each.plots:
                path = folder / f"{each.name}.{plot.name}.png"
                path.write_bytes(plot.png)
                files[f"plots/{each.name}/{plot.name}.png"] = path
        tracker.finish_study(suite, outcome, note=note, files=files)


def _tracked(result: SuiteResult, experiments: Sequence[Experiment], tracker: Tracker) -> pd.DataFrame:
    """Return the runs of all studies as read back, in the order of the experiments and their scenarios."""
    import pandas as pd

    search = f"tags.`llmtrack.suite_id` = '{result.study.study_id}'"
    found = runs(search=search, tracking_uri=tracker.tracking_uri)
    parts = []
    for experiment in experiments:
        study = result.results.get(experiment.name)
        own = found[found["experiment"] == experiment.name]
        if study is not None and study.tracked is not None:
            # With what was taken over from earlier studies, maybe of another experiment.
            own = study.tracked.assign(experiment=experiment.name)
        parts.append(in_order(own, experiment))
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else found


def _sections(
    result: SuiteResult,
    experiments: Sequence[Experiment],
    tracked: pd.DataFrame,
    tracker: Tracker,
    console: Console,
) -> Iterator[Section]:
    """Yield a section for each experiment of which anything was tracked; one that broke has its table only."""
    series_of = partial(series, tracking_uri=tracker.tracking_uri)
    text_of = partial(artifact_text, tracking_uri=tracker.tracking_uri)
    for experiment in experiments:
        own = tracked[tracked["experiment"] == experiment.name].reset_index(drop=True)
        if own.empty:
            continue
        study = result.results.get(experiment.name)
        run_id = study.study.run_id if study else None
        try:
            plots = experiment.plots(own, series_of) if study else {}
            yield section(experiment, run_id, own, study.reading if study else (), plots, text_of)
        except Exception as error:
            console.print(
                f"{experiment.name}: its plots could not be drawn: {error}", markup=False, soft_wrap=True
            )
            yield section(experiment, run_id, own, study.reading if study else (), {}, text_of)
