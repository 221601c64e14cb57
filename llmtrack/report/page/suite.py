"""Build the report of a suite from the tracked runs of its studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack.decide.noise_floor import within
from llmtrack.report.escape import plain
from llmtrack.report.page.gather import Member, plot_of, section, suite_report
from llmtrack.report.page.html import Section
from llmtrack.report.page.place import Place
from llmtrack.report.page.study import Written, more, page_note, prepare_views
from llmtrack.report.page.write import write_html, write_report
from llmtrack.report.plots.drawing import drawing
from llmtrack.report.plots.roofline import roofline_plots
from llmtrack.report.sentences.takeaways import headline, takeaways
from llmtrack.report.show import print_lines, print_table
from llmtrack.report.tables.summary import summary_table, tables_by_task
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOUND = "suite: what it found"


def write_suite(
    members: Sequence[Member],
    question: str,
    place: Place,
    remarks: Sequence[str] = (),
    reasons: Sequence[str] = (),
) -> Written:
    """Print the joint reading of a suite's studies, and write its report.

    Args:
        members: its studies, in order.
        question: question of the whole suite.
        remarks: notes on how it was measured.
        reasons: why experiments could not be run, one line each.
    """
    tracked = within(Runs(run for member in members for run in member.runs))
    if not tracked:
        return Written(note="No experiment could be run.")
    members = list(_in_context_of(tracked, members))
    folder, parts = place.folder, place.parts
    lines, note, files = list(reasons), "", dict[str, Path]()
    with parts.part("takeaways"):
        lines = takeaways(tracked) + lines
    with parts.part("table"):
        tables = tables_by_task(tracked)
        for title, table in tables.items():
            print_table(place.console, f"suite: {title}", table, more=more(tracked, "suite_id"))
        if lines:
            place.console.print(plain(FOUND, "bold"))
            print_lines(place.console, lines)
            place.console.print()
        note = page_note(question, (*lines, *remarks), tables, place.experiment_id)
        files |= write_report(folder, "llmtrack suite", tables, tracked, lines, parts)
        prepare_views(summary_table(tracked), tracked, "suite_id", place.experiment_id, place.tracking_uri)
    sections = tuple(_sections(members, place))
    for each in sections:
        for plot in each.plots:
            with parts.part(f"plot {each.name}/{plot.name}"):
                path = folder / f"{each.name}.{plot.name}.png"
                path.write_bytes(plot.png)
                files[f"plots/{each.name}/{plot.name}.png"] = path
    with parts.part("report.html"):
        page = suite_report(question, place.run_id, tracked, lines, sections, remarks)
        files["report.html"] = write_html(folder, place.linked(page))
    figures: dict[str, float] = {}
    with parts.part("headline"):
        figures = headline(tracked)
    return Written(tuple(lines), note, files, figures)


def _in_context_of(tracked: Runs, members: Sequence[Member]) -> Iterator[Member]:
    """Yield members with runs that include the context of all of them; see `decide.family`."""
    found = iter(tracked)
    for member in members:
        yield replace(member, runs=Runs(islice(found, len(member.runs))))


def _sections(members: Sequence[Member], place: Place) -> Iterator[Section]:
    """Yield a section per study with tracked runs; one that failed only has its table."""
    parts = place.parts
    for member in members:
        if not member.runs:
            continue
        done: Section | None = None
        figures: dict[str, Figure] = {}
        with parts.part(f"roofline of {member.experiment.name}"), drawing():
            figures |= roofline_plots(member.runs)
        with parts.part(f"plots of {member.experiment.name}"), drawing():
            plots = member.experiment.draw(member.runs, place.series) if member.run_id else {}
            drawn = [plot_of(name, figure) for name, figure in {**plots, **figures}.items()]
            done = section(member, drawn, place.text)
        if done is None:
            with parts.part(f"section {member.experiment.name}"):
                done = section(member, [], place.text)
        if done is not None:
            yield done
