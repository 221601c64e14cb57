"""Print a report, and write it as files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from llmtrack.host.console import keep_text, make_folder
from llmtrack.report.escape import in_markdown
from llmtrack.report.page.html import Report, render_report
from llmtrack.report.page.place import Parts
from llmtrack.report.plots.drawing import drawing, save
from llmtrack.report.tables.picture import to_figure
from llmtrack.report.tables.rendering import to_markdown
from llmtrack.report.tables.summary import to_csv
from llmtrack.report.tables.table import Table
from llmtrack.tracked.runs import Runs


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
