"""Print a report, and write it as files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement

from llmtrack.report.drawing import drawing, save
from llmtrack.report.escape import in_markdown, on_one_line, plain
from llmtrack.report.html import Report, render_report
from llmtrack.report.parts import Parts
from llmtrack.report.table import Table, to_csv, to_figure, to_markdown, to_rich

if TYPE_CHECKING:
    import pandas as pd


def print_report(console: Console, title: str, table: Table, reading: Sequence[str] = ()) -> None:
    """Print the conditions, the table and the reading."""
    console.print()
    console.print(plain(title, "bold"))
    if table.conditions:
        console.print(plain(" · ".join(table.conditions)))
    drawn = to_rich(table)
    # A table that is wider than the terminal is wrapped by it, and nothing of it is lost.
    natural = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
    wide = Console(file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal)
    wide.print(drawn)
    for line in (*table.notes, *reading):
        console.print(plain(f"- {on_one_line(line)}"))
    console.print()


def write_report(
    folder: Path,
    title: str,
    table: Table,
    tracked: pd.DataFrame,
    reading: Sequence[str] = (),
    parts: Parts | None = None,
) -> dict[str, Path]:
    """Write the table as CSV, Markdown and PNG, and the reading; return the files by name.

    Args:
        folder: where to; made if it is not there.
        title: of the picture.
        table: what is written.
        tracked: the runs that the table is of.
        reading: what they say.
        parts: is told which file fails; without it the error is raised.
    """

    def picture(path: Path) -> None:
        with drawing():
            save(to_figure(table, title), path)

    lines = "".join(f"- {in_markdown(line)}\n" for line in reading)
    writers: dict[str, Callable[[Path], object]] = {
        "table.csv": lambda path: path.write_text(to_csv(tracked), encoding="utf-8"),
        "table.md": lambda path: path.write_text(to_markdown(table), encoding="utf-8"),
        "reading.md": lambda path: path.write_text(lines, encoding="utf-8"),
        "table.png": picture,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, write in writers.items():
        if name == "reading.md" and not lines:
            continue
        with parts.part(name) if parts else nullcontext():
            write(folder / name)
            files[name] = folder / name
    return files


def write_html(folder: Path, report: Report) -> Path:
    """Write a report as one self-contained HTML file; return it."""
    path = folder / "report.html"
    path.write_text(render_report(report), encoding="utf-8")
    return path
