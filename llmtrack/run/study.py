"""Run an experiment as a tracked study: measure, track each outcome at once, and report what was tracked."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from llmtrack.experiment import Experiment
from llmtrack.report.block import metrics_block
from llmtrack.report.gather import study_report
from llmtrack.report.table import summary_table, to_markdown
from llmtrack.report.write import print_report, write_html, write_report
from llmtrack.run.events import Begun, Event, Log, Progress, Steps, Warn
from llmtrack.run.executors import Executor
from llmtrack.run.plan import make_plan, model_folders
from llmtrack.run.progress import StudyProgress, SuiteProgress
from llmtrack.run.resume import finished_already
from llmtrack.scenario import Failure, Measurement
from llmtrack.tracking.checkpoints import fetch_checkpoints
from llmtrack.tracking.environment import environment, environment_id
from llmtrack.tracking.query import runs
from llmtrack.tracking.series import series
from llmtrack.tracking.texts import artifact_text
from llmtrack.tracking.tracker import Study, Tracker

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class StudyResult:
    """How a study ended.

    Attributes:
        study: its identity in the tracking store.
        measured: scenarios that were measured.
        failed: scenarios that were not.
        reading: what the tracked runs say; empty if they could not be read back.
        tracked: the study's runs as read back, those taken over from earlier studies among them, or None.
    """

    study: Study
    measured: int
    failed: int
    reading: tuple[str, ...] = ()
    tracked: pd.DataFrame | None = None

    @property
    def exit_code(self) -> int:
        """0 if every scenario was measured, else 1."""
        return 1 if self.failed else 0


def run_study(
    experiment: Experiment,
    *,
    tracker: Tracker,
    executor: Executor,
    console: Console,
    suite_id: str | None = None,
    resume: bool = False,
    suite_progress: SuiteProgress | None = None,
) -> StudyResult:
    """Measure every scenario of an experiment and track it.

    A scenario that fails is tracked as a FAILED run and the others go on. When the study is interrupted, what
    is measured stays tracked and the study ends as killed.

    Args:
        experiment: what to measure.
        tracker: where to track it.
        executor: what measures.
        console: where to print.
        suite_id: id of the suite that the study is part of.
        resume: take over finished runs of the same scenario, work and machine instead of measuring again.
        suite_progress: how far the suite is.

    Raises:
        UsageError: the scenarios cannot be planned, or a model is of a run that is not there.
        TrackingError: the store refuses the study.
    """
    machine = executor.machine()
    fetch_checkpoints(experiment.scenarios, tracker.tracking_uri)
    plan = make_plan(experiment.scenarios, machine)
    facts = environment(machine, model_folders(experiment.scenarios))
    console.print(f"[bold]{escape(experiment.name)}[/bold]: {escape(experiment.question)}")
    study = tracker.start_study(
        experiment.name, experiment.question, experiment.settings, facts, suite_id=suite_id
    )
    earlier = None
    if resume and not tracker.offline:
        earlier = finished_already(experiment.scenarios, environment_id(facts), tracker.tracking_uri)
        plan = plan.without(set(earlier["scenario"]))
        console.print(
            f"  resume: {len(earlier)} of {len(experiment.scenarios)} scenarios are measured already and skipped"
        )
    counts = {Measurement: 0, Failure: 0}
    with killed_if_interrupted(tracker, study, executor):
        with StudyProgress(console, sum(map(len, plan.groups)), suite_progress) as progress:

            def on_event(event: Event) -> None:
                if isinstance(event, Log):
                    progress.line(event.text)
                elif isinstance(event, Warn):
                    progress.warn(event.text)
                elif isinstance(event, Progress):
                    progress.step(event)
                elif isinstance(event, Begun):
                    tracker.begin(study, **vars(event))
                elif isinstance(event, Steps):
                    tracker.log_steps(event.run_key, event.rows)
                else:
                    counts[type(event)] += 1
                    tracker.log(study, event)
                    progress.ended(event.scenario.name, outcome_line(event))
                    if isinstance(event, Measurement) and event.sample_text:
                        progress.line(f"    sample: {_one_line(event.sample_text)}")
                    for warning in event.warnings if isinstance(event, Measurement) else ():
                        progress.warn(warning)

            for group in plan.groups:
                executor.run(group, on_event)
            for same in plan.same:
                note = f"same as {same.measured.name}: {same.dtype_label}"
                tracker.log_same_as(
                    study, same.scenario, {"dtype": same.dtype_label}, same.measured.name, note
                )
                progress.line(f"  {same.scenario.name}: not measured again, {note}")
        reading, tracked = _report(experiment, study, tracker, console, bool(counts[Failure]), earlier)
    return StudyResult(study, counts[Measurement], counts[Failure], reading, tracked)


def outcome_line(outcome: Measurement | Failure) -> str:
    """Return one line that says how a scenario ended."""
    name = outcome.scenario.name
    if isinstance(outcome, Failure):
        word = "KILLED" if outcome.kind == "interrupted" else "FAILED"
        return f"  {name}: {word} ({outcome.kind}): {outcome.reason}"
    metrics = outcome.metrics
    parts = []
    for key, text in (
        ("total_latency_s", "{:.3f} s"),
        ("tokens_per_sec", "{:.2f} tokens/s"),
        ("avg_latency_per_token_ms", "{:.1f} ms/token"),
        ("time_to_first_token_ms", "TTFT {:.0f} ms"),
        ("loss", "loss {:.4f}"),
        ("perplexity_before", "perplexity {:.3f} before"),
        ("perplexity", "perplexity {:.3f}"),
    ):
        if key in metrics:
            parts.append(text.format(metrics[key]))
    repeats = outcome.summaries.get("total_latency_s")
    return f"  {name}: {', '.join(parts)}" + (f" (median of {repeats.n})" if repeats else "")


def _one_line(text: str, width: int = 100) -> str:
    # A model may say control characters, and a terminal would obey them.
    joined = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split()))
    return joined if len(joined) <= width else joined[: width - 1] + "…"


@contextmanager
def killed_if_interrupted(tracker: Tracker, study: Study, executor: Executor) -> Iterator[None]:
    """End a study as killed when a signal ends it, or as failed when an error does."""
    try:
        yield
    except BaseException as error:
        executor.close()
        killed = not isinstance(error, Exception)
        reason = f"ended early by {type(error).__name__}{f': {error}' if str(error) else ''}"
        tracker.finish_study(study, "killed" if killed else "failed", reason=reason)
        raise


def _report(
    experiment: Experiment,
    study: Study,
    tracker: Tracker,
    console: Console,
    failed: bool,
    earlier: pd.DataFrame | None,
) -> tuple[tuple[str, ...], pd.DataFrame | None]:
    """Read the study's runs back, print and track the table, plots and reading, and finish the study.

    Runs that were taken over from earlier studies are read as if they were this one's.
    """
    outcome = "failed" if failed else "finished"
    if tracker.offline:
        tracker.finish_study(study, outcome)
        return (), None
    import pandas as pd

    tracked = runs(study=study.study_id, tracking_uri=tracker.tracking_uri)
    if earlier is not None and len(earlier):
        tracked = pd.concat([tracked, earlier.assign(study_id=study.study_id)], ignore_index=True)
    tracked = in_order(tracked, experiment)
    table = summary_table(tracked, focus=experiment.focus)
    reading = experiment.reading(tracked)
    if experiment.show_block:
        for _, run in tracked.iterrows():
            console.print("\n".join(metrics_block(run)), markup=False, highlight=False)
    print_report(console, experiment.name, table, reading)
    links = [f"#/experiments/{study.experiment_id}/runs/{run_id}" for run_id in table.run_ids]
    note = "\n".join(
        [
            f"**{experiment.question}**",
            "",
            to_markdown(table, tuple(links)),
            *(f"- {line}" for line in reading),
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        files = write_report(Path(folder), experiment.name, table, tracked, reading)
        figures = experiment.plots(tracked, partial(series, tracking_uri=tracker.tracking_uri))
        for name, figure in figures.items():
            path = Path(folder, f"{name}.png")
            figure.savefig(path)
            files[f"plots/{name}.png"] = path
        text_of = partial(artifact_text, tracking_uri=tracker.tracking_uri)
        html = study_report(experiment, study.run_id, tracked, reading, figures, text_of)
        files["report.html"] = write_html(Path(folder), html)
        tracker.finish_study(study, outcome, note=note, files=files)
    return tuple(reading), tracked


def in_order(tracked: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    """Sort tracked runs as the experiment lists its scenarios."""
    position = {scenario.name: index for index, scenario in enumerate(experiment.scenarios)}
    return tracked.sort_values("scenario", key=lambda names: names.map(position), kind="stable").reset_index(
        drop=True
    )
