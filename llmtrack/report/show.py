"""Show a table with the requested format, columns and width; used by every command."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from llmtrack.host.console import emit
from llmtrack.report.page.write import print_report
from llmtrack.report.tables.columns import Further, with_columns
from llmtrack.report.tables.formats import render
from llmtrack.report.tables.table import Table


@dataclass(frozen=True)
class Layout:
    """How to show a table.

    Attributes:
        style: `table`, `csv`, `json`, `markdown`, `html` or `latex`.
        sort: column to sort by, descending with a leading `-`; runs without a value come last.
        columns: columns to show; None for the important ones.
        wide: every column, even if the terminal is too narrow.
    """

    style: str = "table"
    sort: str | None = None
    columns: tuple[str, ...] | None = None
    wide: bool = False


AS_TABLE = Layout()


def show(console: Console, title: str, table: Table, layout: Layout, among: Further | None = None) -> None:
    """Print a table.

    Args:
        among: further values of its rows, available as columns.

    Raises:
        UsageError: a column does not exist.
    """
    if layout.columns is not None:
        table = with_columns(table, among, layout.columns)
    if layout.style == "table":
        print_report(console, title, table, wide=layout.wide)
    else:
        emit(console, render(table, layout.style, title))
