"""Show a table as a person asked for it: in which format, with which columns, how wide; the one way of every command."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from llmtrack.host.console import emit
from llmtrack.report.columns import Further, with_columns
from llmtrack.report.formats import render
from llmtrack.report.table import Table
from llmtrack.report.write import print_report


@dataclass(frozen=True)
class Layout:
    """How a table is shown.

    Attributes:
        style: `table`, `csv`, `json`, `markdown`, `html` or `latex`.
        sort: column to sort by, with `-` before it from high to low; runs without a value come last.
        columns: columns to show; else those that matter.
        wide: every column, even where the terminal is too narrow for them.
    """

    style: str = "table"
    sort: str | None = None
    columns: tuple[str, ...] | None = None
    wide: bool = False


AS_TABLE = Layout()


def show(console: Console, title: str, table: Table, layout: Layout, among: Further | None = None) -> None:
    """Print a table.

    Args:
        console: where to.
        title: what it is of.
        table: all there is.
        layout: what is wanted of it.
        among: what is known of its rows, from which columns may be chosen.

    Raises:
        UsageError: there is no such column.
    """
    if layout.columns is not None:
        table = with_columns(table, among, layout.columns)
    if layout.style == "table":
        print_report(console, title, table, wide=layout.wide)
    else:
        emit(console, render(table, layout.style, title))
