"""Print a report, and write it as files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement

from llmtrack.report.html import Report, render_report
from llmtrack.report.table import Table, to_csv, to_figure, to_markdown, to_rich

if TYPE_CHECKING:
    import pandas as pd


def print_report(console: Console, title: str, table: Table, reading: Sequence[str] = ()) -> None:
    """Print the conditions, the table and the reading."""
    console.print()
    console.print(f"[bold]{escape(title)}[/bold]")
    if table.conditions:
        console.print(escape(" · ".join(table.conditions)), highlight=False)
    drawn = to_rich(table)
    # A table that is wider than the terminal is wrapped by it, and nothing of it is lost.
    natural = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
    wide = Console(file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal)
    wide.print(drawn)
    for line in (*table.notes, *reading):
        console.print(f"- {escape(line)}", highlight=False)
    console.print()


def write_report(
    folder: Path, title: str, table: Table, tracked: pd.DataFrame, reading: Sequence[str] = ()
) -> dict[str, Path]:
    """Write the table as CSV, Markdown and PNG, and the reading; return the files by name."""
    texts: Mapping[str, str] = {
        "table.csv": to_csv(tracked),
        "table.md": to_markdown(table),
        "reading.md": "".join(f"- {line}\n" for line in reading),
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = {name: folder / name for name, text in texts.items() if text}
    for name, path in files.items():
        path.write_text(texts[name], encoding="utf-8")
    files["table.png"] = folder / "table.png"
    to_figure(table, title).savefig(files["table.png"])
    return files


def write_html(folder: Path, report: Report) -> Path:
    """Write a report as one self-contained HTML file; return it."""
    path = folder / "report.html"
    path.write_text(render_report(report), encoding="utf-8")
    return path
