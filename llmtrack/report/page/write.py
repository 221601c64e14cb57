"""Print a report, and write it as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement

from llmtrack.host.console import console_of, keep_text, make_folder, on_one_line
from llmtrack.host.formatting import plural
from llmtrack.report.escape import in_markdown, plain
from llmtrack.report.page.html import Report, render_report
from llmtrack.report.page.place import Parts
from llmtrack.report.plots.drawing import drawing, save
from llmtrack.report.plots.picture import to_figure
from llmtrack.report.tables.fit import blocks, fit_to_width, without_constants
from llmtrack.report.tables.formats import to_markdown, to_rich
from llmtrack.report.tables.table import Table, to_csv
from llmtrack.report.terminal import width_of
from llmtrack.tracked.runs import Runs

MORE = "--wide, or --columns NAME,NAME"
"""Options that show the columns dropped for lack of room."""

_NAMED = 6
"""Number of dropped columns to name."""


def print_report(
    console: Console,
    title: str,
    table: Table,
    reading: Sequence[str] = (),
    wide: bool = False,
    more: str = MORE,
) -> None:
    """Print conditions, table and reading; on a terminal, as many columns as fit.

    Args:
        title: of the table.
        reading: lines below it.
        wide: every column regardless of the width, as in a pipe or file.
        more: how to see the dropped columns.
    """
    whole = wide or width_of(console) is None
    fitted = None if whole else fit_to_width(table, console.width)
    shown = fitted.table if fitted else table if whole else without_constants(table)
    console.print()
    for line in filter(None, (title,)):
        console.print(plain(line, "bold"))
    if shown.conditions:
        console.print(plain(" · ".join(shown.conditions)))
    if whole:
        drawn = to_rich(table)
        # The terminal wraps a table that is too wide, without losing anything.
        natural = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
        wider = console_of(file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal)
        wider.print(drawn)
    elif fitted:
        console.print(to_rich(shown, widths=fitted.widths))
        if fitted.left_out:
            console.print(plain(f"+{plural(len(fitted.left_out), 'column')}: {more}", "dim"))
            first = fitted.left_out[:_NAMED]
            others = len(fitted.left_out) - len(first)
            console.print(plain(f"({', '.join(first)}{f' and {others} more' if others else ''})", "dim"))
    else:
        for line in blocks(shown, console.width):
            console.print(plain(line), no_wrap=True, overflow="ignore", crop=False)
    print_lines(console, (*table.notes, *reading))
    console.print()


def print_lines(console: Console, lines: Sequence[str]) -> None:
    """Print sentences as bullet points."""
    for line in lines:
        console.print(plain(f"- {on_one_line(line)}"))


def write_report(
    folder: Path,
    title: str,
    table: Table | Mapping[str, Table],
    tracked: Runs,
    reading: Sequence[str] = (),
    parts: Parts | None = None,
) -> dict[str, Path]:
    """Write the table as CSV, Markdown and PNG, and the reading; return the files by name.

    Args:
        folder: created if missing.
        title: of the picture.
        table: or several by title.
        tracked: runs of the table.
        parts: collects failures; without it errors are raised.
    """

    def picture(path: Path) -> None:
        with drawing():
            save(to_figure(table, title), path)

    lines = "".join(f"- {in_markdown(line)}\n" for line in reading)
    writers: dict[str, Callable[[Path], object]] = {
        "table.csv": lambda path: keep_text(path, to_csv(tracked)),
        "table.md": lambda path: keep_text(path, _in_sections(table)),
        "reading.md": lambda path: keep_text(path, lines),
        "table.png": picture,
    }
    make_folder(folder)
    files = {}
    for name, write in writers.items():
        if name == "reading.md" and not lines:
            continue
        with parts.part(name) if parts else nullcontext():
            write(folder / name)
            files[name] = folder / name
    return files


def _in_sections(table: Table | Mapping[str, Table]) -> str:
    if isinstance(table, Table):
        return to_markdown(table)
    return "\n".join(f"### {name}\n\n{to_markdown(each)}" for name, each in table.items())


def write_html(folder: Path, report: Report) -> Path:
    """Write a report as one self-contained HTML file; return its path."""
    path = folder / "report.html"
    keep_text(path, render_report(report))
    return path
