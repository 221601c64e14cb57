"""Build the report of a study from its tracked runs: print it, and write its files."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from llmtrack.decide.noise_floor import say_floor
from llmtrack.errors import LlmtrackError
from llmtrack.experiment import Experiment
from llmtrack.report.escape import in_markdown
from llmtrack.report.page.gather import Member, plot_of, study_report
from llmtrack.report.page.html import Plot
from llmtrack.report.page.place import Place, links_to
from llmtrack.report.page.views import as_text, chart_view
from llmtrack.report.page.write import write_html, write_report
from llmtrack.report.plots.drawing import drawing
from llmtrack.report.plots.roofline import roofline_plots
from llmtrack.report.sentences.takeaways import headline
from llmtrack.report.show import metrics_block, print_table
from llmtrack.report.tables.rendering import fit_to_width, to_markdown
from llmtrack.report.tables.summary import compared_by_default, summary_table
from llmtrack.report.tables.table import Table
from llmtrack.report.terminal import say, width_of
from llmtrack.tracked.runs import Runs, keys
from llmtrack.tracking.views import keep_views

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Written:
    """Content of a report.

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


def write_study(experiment: Experiment, tracked: Runs, place: Place) -> Written:
    """Print a study's table and reading, and write its report.

    Args:
        tracked: its runs, in table order.
    """
    folder, console, parts = place.folder, place.console, place.parts
    reading: list[str] = []
    figures: dict[str, Figure] = {}
    files: dict[str, Path] = {}
    with parts.part("reading"):
        reading = experiment.read(tracked)
    lines = [*reading, *say_floor(tracked, *compared_by_default())]
    table: Table | None = None
    with parts.part("table"):
        table = summary_table(tracked, own=experiment.table)
        if experiment.show_block:
            for run in tracked:
                say(console, "\n".join(metrics_block(run, width_of(console))))
        print_table(console, experiment.name, table, lines, more=more(tracked, "study_id"))
        files |= write_report(folder, experiment.name, table, tracked, lines, parts)
        prepare_views(table, tracked, "study_id", place.experiment_id, place.tracking_uri)
    with parts.part("plots"), drawing():
        figures = dict(experiment.draw(tracked, place.series))
    with parts.part("plot roofline"), drawing():
        figures |= roofline_plots(tracked)
    drawn: list[Plot] = []
    for name, figure in figures.items():
        with parts.part(f"plot {name}"):
            plot = plot_of(name, figure)
            path = folder / f"{name}.png"
            path.write_bytes(plot.png)
            files[f"plots/{name}.png"] = path
            drawn.append(plot)
    with parts.part("report.html"):
        page = study_report(Member(experiment, place.run_id, tracked, lines, table), drawn, place.text)
        files["report.html"] = write_html(folder, place.linked(page))
    note = ""
    with parts.part("note"):
        tables = {"": table or summary_table(tracked, own=experiment.table)}
        note = page_note(experiment.question, lines, tables, place.experiment_id)
    figures_of_its_own: dict[str, float] = {}
    with parts.part("headline"):
        figures_of_its_own = headline(tracked)
    return Written(tuple(reading), note, files, figures_of_its_own)


def page_note(question: str, lines: Sequence[str], tables: Mapping[str, Table], experiment_id: str | None) -> str:
    """Return the note for the page of a study's run; MLflow folds it to three lines, so the answer comes first.

    Args:
        question: the question.
        lines: the answer, then further lines.
        tables: by title, which may be empty; rows link to their runs.
        experiment_id: MLflow experiment, for links.
    """
    answer, *rest = map(in_markdown, lines or ["Nothing was found."])
    parts = [f"**{answer}**", f"*{in_markdown(question)}*", "\n".join(f"- {line}" for line in rest)]
    for title, table in tables.items():
        linked = to_markdown(narrow(table), links_to(experiment_id, table.run_ids))
        parts.append(f"**{title}**\n\n{linked}" if title else linked)
    return "\n\n".join(filter(None, parts))


# Width of MLflow's run page in characters.
_PAGE_WIDTH = 110


def narrow(table: Table) -> Table:
    """Return the part of a table that fits on a run's page; table.md has all of it."""
    fitted = fit_to_width(table, _PAGE_WIDTH)
    return table if fitted is None else fitted.table


def prepare_views(table: Table, tracked: Runs, key: str, experiment_id: str | None, tracking_uri: str) -> None:
    """Prepare the MLflow views of a study or suite; without them MLflow shows its default table."""
    own = _the_one(tracked, key)
    if experiment_id is None or not own:
        return
    view = as_text(chart_view(table, tracked, f"llmtrack.{key}", own))
    with contextlib.suppress(LlmtrackError):
        keep_views({own: view}, experiment_id, tracking_uri)


def more(tracked: Runs, key: str) -> str:
    """Return the command that shows all columns of a study's or suite's table."""
    own = _the_one(tracked, key)
    return f"llmtrack compare --study {own} --wide" if own else "llmtrack compare --wide"


def _the_one(tracked: Runs, key: str) -> str:
    """Return the id of the single study or suite of runs; empty if there are several or none."""
    ids = {each for (each,) in keys(tracked, [key])} - {""}
    return ids.pop() if len(ids) == 1 else ""


def say_incomplete(console: Console, study_id: str, problems: Sequence[str], kept: bool = False) -> None:
    """Print which parts of a report failed, and how to rebuild it."""
    for problem in problems:
        say(console, f"warning: the report is not complete: {problem}")
    if problems:
        first = "llmtrack sync, then " if kept else ""
        say(console, f"What was measured is tracked; make the report again: {first}llmtrack report {study_id}")
