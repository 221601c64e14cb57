"""Build the report of a study or suite from its tracked runs: print it, write its files, and rebuild it later."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from llmtrack.decide.noise_floor import noise_floor_lines, recompute_context
from llmtrack.decide.verdicts import with_samples
from llmtrack.errors import LlmtrackError
from llmtrack.experiment import Declaration, Experiment, draw_nothing
from llmtrack.host.console import make_folder
from llmtrack.host.entry_points import EXPERIMENTS, named_experiment
from llmtrack.metrics import SETTING_PREFIX
from llmtrack.report.escape import in_markdown, plain
from llmtrack.report.page.content import Member, plot_of, section, study_report, suite_report
from llmtrack.report.page.html import Plot, Section
from llmtrack.report.page.output import Parts, ReportContext, run_links, write_html, write_report
from llmtrack.report.page.views import as_text, chart_view
from llmtrack.report.plots.drawing import drawing
from llmtrack.report.plots.roofline import roofline_plots
from llmtrack.report.sentences.reading import doubts
from llmtrack.report.sentences.takeaways import headline, takeaways
from llmtrack.report.show import metrics_block
from llmtrack.report.tables.rendering import fit_to_width, print_table, to_markdown
from llmtrack.report.tables.summary import compared_by_default, summary_table, tables_by_task
from llmtrack.report.tables.table import Table
from llmtrack.report.terminal import print_line, print_lines, width_of
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs, keys
from llmtrack.tracking.mlflow_experiments import experiment_of_run
from llmtrack.tracking.read.query import SUITE, study_run, tracked_runs
from llmtrack.tracking.store import open_existing
from llmtrack.tracking.uri import resolve_tracking_uri
from llmtrack.tracking.views import keep_views
from llmtrack.tracking.write.amend import add_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOUND = "suite: what it found"
"""Heading of a suite's reading."""
# Width of MLflow's run page in characters.
_PAGE_WIDTH = 110


@dataclass(frozen=True)
class WrittenReport:
    """A report as written.

    Attributes:
        reading: interpretation of the runs.
        note: Markdown for the page of the study's run.
        files: artifact path to file.
        metrics: headline metrics of the study itself.
    """

    reading: tuple[str, ...] = ()
    note: str = ""
    files: Mapping[str, Path] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def write_study(experiment: Experiment, tracked: Runs, context: ReportContext) -> WrittenReport:
    """Print a study's table and reading, and write its report.

    Args:
        tracked: its runs, in table order.
    """
    folder, console, parts = context.folder, context.console, context.parts
    reading: list[str] = []
    figures: dict[str, Figure] = {}
    files: dict[str, Path] = {}
    with parts.part("reading"):
        reading = experiment.read(tracked)
    lines = [*reading, *noise_floor_lines(tracked, *compared_by_default())]
    table: Table | None = None
    with parts.part("table"):
        table = summary_table(tracked, own=experiment.table)
        if experiment.show_block:
            for run in tracked:
                print_line(console, "\n".join(metrics_block(run, width_of(console))))
        print_table(console, experiment.name, table, lines, more=_wide_command(tracked, "study_id"))
        files |= write_report(folder, experiment.name, table, tracked, lines, parts)
        prepare_views(table, tracked, "study_id", context.experiment_id, context.tracking_uri)
    with parts.part("plots"), drawing():
        figures = dict(experiment.draw(tracked, context.series))
    with parts.part("plot roofline"), drawing():
        figures |= roofline_plots(tracked)
    plots: list[Plot] = []
    for name, figure in figures.items():
        with parts.part(f"plot {name}"):
            plot = plot_of(name, figure)
            files[f"plots/{name}.png"] = _save(plot, folder / f"{name}.png")
            plots.append(plot)
    with parts.part("report.html"):
        page = study_report(Member(experiment, context.run_id, tracked, lines, table), plots, context.text)
        files["report.html"] = write_html(folder, context.with_links(page))
    note = ""
    with parts.part("note"):
        tables = {"": table or summary_table(tracked, own=experiment.table)}
        note = page_note(experiment.question, lines, tables, context.experiment_id)
    metrics: dict[str, float] = {}
    with parts.part("headline"):
        metrics = headline(tracked)
    return WrittenReport(tuple(reading), note, files, metrics)


def write_suite(
    members: Sequence[Member],
    question: str,
    context: ReportContext,
    remarks: Sequence[str] = (),
    reasons: Sequence[str] = (),
) -> WrittenReport:
    """Print the joint reading of a suite's studies, and write its report.

    Args:
        members: its studies, in order.
        question: question of the whole suite.
        remarks: notes on how it was measured.
        reasons: why experiments could not be run, one line each.
    """
    tracked = recompute_context(Runs(run for member in members for run in member.runs))
    if not tracked:
        return WrittenReport(note="No experiment could be run.")
    folder, console, parts = context.folder, context.console, context.parts
    lines, note, files = list(reasons), "", dict[str, Path]()
    with parts.part("takeaways"):
        lines = takeaways(tracked) + lines
    with parts.part("table"):
        tables = tables_by_task(tracked)
        for title, table in tables.items():
            print_table(console, f"suite: {title}", table, more=_wide_command(tracked, "suite_id"))
        if lines:
            console.print(plain(FOUND, "bold"))
            print_lines(console, lines)
            console.print()
        note = page_note(question, (*lines, *remarks), tables, context.experiment_id)
        files |= write_report(folder, "llmtrack suite", tables, tracked, lines, parts)
        prepare_views(summary_table(tracked), tracked, "suite_id", context.experiment_id, context.tracking_uri)
    sections = tuple(_sections(_in_context_of(tracked, members), context))
    for study_section in sections:
        for plot in study_section.plots:
            with parts.part(f"plot {study_section.name}/{plot.name}"):
                path = _save(plot, folder / f"{study_section.name}.{plot.name}.png")
                files[f"plots/{study_section.name}/{plot.name}.png"] = path
    with parts.part("report.html"):
        page = suite_report(question, context.run_id, tracked, lines, sections, remarks)
        files["report.html"] = write_html(folder, context.with_links(page))
    metrics: dict[str, float] = {}
    with parts.part("headline"):
        metrics = headline(tracked)
    return WrittenReport(tuple(lines), note, files, metrics)


def rebuild_report(
    study: str, console: Console, tracking_uri: str | None = None, output: Path | None = None
) -> tuple[str, ...]:
    """Print the report of a study or suite, and store its table, plots and page with its run.

    Args:
        study: its id, the id of its run, or `latest`.
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.
        output: folder for a copy of the files.

    Returns:
        Failed parts with the reason, one line each.

    Raises:
        UsageError: there is no such study.
        TrackingError: the store cannot be used.
    """
    uri = resolve_tracking_uri(tracking_uri)
    run = study_run(study, uri)
    parts = Parts()
    with ExitStack() as stack:
        folder = output or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        make_folder(folder)
        experiment_id, _ = experiment_of_run(open_existing(uri), run.run_id)
        context = ReportContext(run.run_id, experiment_id, uri, folder, console, parts)
        written = (_rebuild_suite if run.experiment == SUITE else _rebuild_study)(run, context)
        add_report(run.run_id, written.note, written.files, parts.problems, uri, written.metrics)
    if output is not None:
        print_line(console, f"Written: {', '.join(map(str, written.files.values()))}")
    return tuple(parts.problems)


def page_note(question: str, lines: Sequence[str], tables: Mapping[str, Table], experiment_id: str | None) -> str:
    """Return the note for the page of a study's run; MLflow folds it to three lines, so the answer comes first.

    Args:
        lines: the answer, then further lines.
        tables: by title, which may be empty; rows link to their runs.
        experiment_id: MLflow experiment, for links.
    """
    answer, *rest = map(in_markdown, lines or ["Nothing was found."])
    paragraphs = [f"**{answer}**", f"*{in_markdown(question)}*", "\n".join(f"- {line}" for line in rest)]
    for title, table in tables.items():
        fitted = fit_to_width(table, _PAGE_WIDTH)  # table.md has all of it
        text = to_markdown(fitted.table if fitted else table, run_links(experiment_id, table.run_ids))
        paragraphs.append(f"**{title}**\n\n{text}" if title else text)
    return "\n\n".join(filter(None, paragraphs))


def prepare_views(table: Table, tracked: Runs, key: str, experiment_id: str | None, tracking_uri: str) -> None:
    """Prepare the MLflow views of a study or suite; without them MLflow shows its default table.

    Args:
        key: `study_id` or `suite_id`.
    """
    value = _single_id(tracked, key)
    if experiment_id is None or not value:
        return
    view = as_text(chart_view(table, tracked, f"llmtrack.{key}", value))
    with contextlib.suppress(LlmtrackError):
        keep_views({value: view}, experiment_id, tracking_uri)


def print_incomplete(console: Console, study_id: str, problems: Sequence[str], spooled: bool = False) -> None:
    """Print which parts of a report failed, and how to rebuild it.

    Args:
        spooled: whether records of the study still wait to be sent.
    """
    for problem in problems:
        print_line(console, f"warning: the report is not complete: {problem}")
    if problems:
        first = "llmtrack sync, then " if spooled else ""
        print_line(console, f"What was measured is tracked; make the report again: {first}llmtrack report {study_id}")


def _wide_command(tracked: Runs, key: str) -> str:
    """Return the command that shows all columns of a study's or suite's table."""
    value = _single_id(tracked, key)
    return f"llmtrack compare --study {value} --wide" if value else "llmtrack compare --wide"


def _single_id(tracked: Runs, key: str) -> str:
    """Return the id of the single study or suite of runs; empty if there are several or none."""
    ids = {value for (value,) in keys(tracked, [key])} - {""}
    return ids.pop() if len(ids) == 1 else ""


def _save(plot: Plot, path: Path) -> Path:
    path.write_bytes(plot.png)
    return path


def _in_context_of(tracked: Runs, members: Sequence[Member]) -> Iterator[Member]:
    """Yield members with runs that include the context of all of them; see `decide.noise_floor`."""
    runs = iter(tracked)
    for member in members:
        yield replace(member, runs=Runs(islice(runs, len(member.runs))))


def _sections(members: Iterable[Member], context: ReportContext) -> Iterator[Section]:
    """Yield a section per study with tracked runs; one that failed only has its table."""
    parts = context.parts
    for member in members:
        if not member.runs:
            continue
        name = member.experiment.name
        built: Section | None = None
        roofline: Mapping[str, Figure] = {}
        with parts.part(f"roofline of {name}"), drawing():
            roofline = roofline_plots(member.runs)
        with parts.part(f"plots of {name}"), drawing():
            figures = member.experiment.draw(member.runs, context.series) if member.run_id else {}
            plots = [plot_of(title, figure) for title, figure in {**figures, **roofline}.items()]
            built = section(member, plots, context.text)
        if built is None:
            with parts.part(f"section {name}"):
                built = section(member, [], context.text)
        if built is not None:
            yield built


def _rebuild_study(study: Run, context: ReportContext) -> WrittenReport:
    uri = context.tracking_uri
    tracked = with_samples(_in_order(tracked_runs(study=study.study_id, tracking_uri=uri)), uri)
    return write_study(_experiment(study, context.parts), tracked, context)


def _rebuild_suite(suite: Run, context: ReportContext) -> WrittenReport:
    uri, parts = context.tracking_uri, context.parts
    of_suite = {"llmtrack.suite_id": suite.study_id}
    runs = with_samples(_in_order(tracked_runs(tags=of_suite, tracking_uri=uri)), uri)
    members = []
    for study in _in_order(tracked_runs(kind="study", tags=of_suite, tracking_uri=uri)):
        experiment = _experiment(study, parts)
        tracked = Runs(run for run in runs if run.study_id == study.study_id)
        reading: Sequence[str] = ()
        with parts.part(f"reading of {experiment.name}"):
            reading = experiment.read(tracked)
        members.append(Member(experiment, study.run_id, tracked, tuple(reading)))
    quick = str(suite.get(f"{SETTING_PREFIX}quick")).lower() == "true"
    module = named_experiment(SUITE)
    remarks = []
    if quick and module is not None:
        with parts.part("remarks"):
            remarks = [module.quick_remark([member.experiment.name for member in members])]
    return write_suite(members, suite.question, context, remarks)


def _experiment(study: Run, parts: Parts) -> Experiment:
    """Return the plots and reading of a study's experiment, as far as available."""
    name = study.experiment
    module = None
    with parts.part("plots and reading"):
        module = named_experiment(name)
    if module is None and not parts.problems:
        parts.problems.append(f"plots and reading: {EXPERIMENTS}/{name}.py is not here; run it in the project's folder")
    settings = {
        key.removeprefix(SETTING_PREFIX): str(value)
        for key, value in sorted(study.params.items())
        if key.startswith(SETTING_PREFIX) and value is not None
    }
    declared: Declaration[Any] | None = getattr(module, "DECLARED", None)
    return Experiment(
        name=name,
        question=study.question,
        scenarios=(),
        plots=declared.plots if declared else draw_nothing,
        reading=declared.reading if declared else doubts,
        settings=settings,
        table=declared.table if declared else None,
        typed=declared is None or declared.typed,
    )


def _in_order(tracked: Runs) -> Runs:
    """Sort runs as their study does; of a remeasured scenario keep only the newest (they come first)."""
    newest = set(tracked.first_of_each("study_id", "scenario"))
    return tracked.where(lambda run: not run.scenario or run in newest).in_order_of_study()
