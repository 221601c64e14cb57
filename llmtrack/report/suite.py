"""Make the report of a suite from the tracked runs of its studies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from llmtrack.decide.floor import with_floors
from llmtrack.experiment import Experiment
from llmtrack.report.drawing import drawing
from llmtrack.report.escape import in_markdown
from llmtrack.report.gather import section, suite_report
from llmtrack.report.html import Section
from llmtrack.report.parts import Parts
from llmtrack.report.roofline import roofline_plots
from llmtrack.report.study import Written, links, more, narrow, prepare_views
from llmtrack.report.table import summary_table, to_markdown
from llmtrack.report.takeaways import headline, takeaways
from llmtrack.report.tasks import tables_by_task
from llmtrack.report.write import print_report, write_html, write_report
from llmtrack.tracking.artifacts import artifact_text, series

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Member:
    """A study of a suite.

    Attributes:
        experiment: what it asked.
        run_id: its run, or None if it did not come to its end.
        runs: its scenarios' runs, in the order of the table.
        reading: what they say.
    """

    experiment: Experiment
    run_id: str | None
    runs: pd.DataFrame
    reading: tuple[str, ...] = ()


def write_suite(
    members: Sequence[Member],
    *,
    question: str,
    run_id: str | None,
    experiment_id: str | None,
    tracking_uri: str,
    folder: Path,
    console: Console,
    parts: Parts,
    remarks: Sequence[str] = (),
    reasons: Sequence[str] = (),
) -> Written:
    """Print what the studies of a suite say together and write its report.

    Args:
        members: its studies, in order.
        question: what all of it asks.
        run_id: the suite's run.
        experiment_id: the MLflow experiment, for links.
        tracking_uri: the store that the runs are in.
        folder: where files are written.
        console: where to print.
        parts: is told what fails.
        remarks: what the reader must know of how it was measured.
        reasons: why experiments could not be run, one line each.
    """
    import pandas as pd

    frames = [member.runs for member in members if len(member.runs)]
    if not frames:
        return Written(note="No experiment could be run.")
    everything = pd.concat(frames, ignore_index=True)
    members = [replace(member, runs=with_floors(member.runs, everything)) for member in members]
    tracked = with_floors(everything)
    lines, note, files = list(reasons), "", dict[str, Path]()
    with parts.part("takeaways"):
        lines = takeaways(tracked) + lines
    with parts.part("table"):
        tables = tables_by_task(tracked)
        for title, table in tables.items():
            last = title == tuple(tables)[-1]
            print_report(
                console, f"suite: {title}", table, lines if last else (), more=more(tracked, "suite_id")
            )
        note = "".join(f"- {in_markdown(line)}\n" for line in (*remarks, *lines)) + "\n"
        note += "\n".join(
            f"**{title}**\n\n{to_markdown(narrow(table), links(experiment_id, table.run_ids))}"
            for title, table in tables.items()
        )
        files |= write_report(folder, "llmtrack suite", tables, tracked, lines, parts)
        prepare_views(summary_table(tracked), tracked, "suite_id", experiment_id, tracking_uri)
    sections = tuple(_sections(members, tracking_uri, parts))
    for each in sections:
        for plot in each.plots:
            with parts.part(f"plot {each.name}/{plot.name}"):
                path = folder / f"{each.name}.{plot.name}.png"
                path.write_bytes(plot.png)
                files[f"plots/{each.name}/{plot.name}.png"] = path
    with parts.part("report.html"):
        page = suite_report(question, run_id, tracked, lines, sections, remarks)
        files["report.html"] = write_html(folder, page)
    figures: dict[str, float] = {}
    with parts.part("headline"):
        figures = headline(tracked)
    return Written(tuple(lines), note, files, figures)


def _sections(members: Sequence[Member], tracking_uri: str, parts: Parts) -> Iterator[Section]:
    """Yield a section for each study of which anything was tracked; one that broke has its table only."""
    series_of = partial(series, tracking_uri=tracking_uri)
    text_of = partial(artifact_text, tracking_uri=tracking_uri)
    for member in members:
        if member.runs.empty:
            continue
        own = member.runs.reset_index(drop=True)
        made = partial(section, member.experiment, member.run_id, own, member.reading)
        done: Section | None = None
        figures: dict[str, Figure] = {}
        with parts.part(f"roofline of {member.experiment.name}"), drawing():
            figures |= roofline_plots(own)
        with parts.part(f"plots of {member.experiment.name}"), drawing():
            done = made(
                {**(member.experiment.plots(own, series_of) if member.run_id else {}), **figures}, text_of
            )
        if done is None:
            with parts.part(f"section {member.experiment.name}"):
                done = made({}, text_of)
        if done is not None:
            yield done
