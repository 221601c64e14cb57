"""List tracked runs: a narrow table for people, CSV or JSON with all columns for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from llmtrack.host.console import emit
from llmtrack.host.formatting import plural
from llmtrack.report.show import Layout, show
from llmtrack.report.tables.columns import column_of_runs
from llmtrack.report.tables.formats import render
from llmtrack.report.tables.table import DASH, Table
from llmtrack.report.terminal import make_console, say
from llmtrack.tracked.frames import check_columns, column_names, frame_of, pick
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.ids import SHORT_ID, is_id

LISTED = (
    "run_id",
    "start_time",
    "experiment",
    "scenario",
    "status",
    "model_id",
    "dtype",
    "tokens_per_sec",
    "perplexity",
)


def listing_table(runs: Runs, chosen: Sequence[str] | None = None) -> Table:
    """Return one row per run.

    Args:
        chosen: columns to show; None for the main ones.

    Raises:
        UsageError: a column does not exist.
    """
    if chosen is not None:
        check_columns(chosen, column_names(runs))
    keys = LISTED if chosen is None else tuple(chosen)
    columns = [column_of_runs(key, runs) for key in keys]
    rows = tuple(
        tuple(_cell(run.get(column.key), column.render, chosen is not None) for column in columns) for run in runs
    )
    return Table(
        conditions=(),
        titles=keys,
        numeric=tuple(column.is_number for column in columns),
        rows=rows,
        run_ids=("",) * len(rows),
        keys=keys,
    )


def show_runs(runs: Runs, layout: Layout) -> None:
    """Print runs; see `render_runs` for the formats."""
    console = make_console()
    if layout.style != "table":
        emit(console, render_runs(runs, layout.style, layout.columns))
        return
    show(console, "", listing_table(runs, layout.columns), Layout(wide=layout.wide))
    say(console, counted(runs))


def render_runs(runs: Runs, style: str = "table", chosen: Sequence[str] | None = None) -> str:
    """Render runs as text.

    Args:
        style: `table` (the main columns), `csv` or `json` (every column that any run has).
        chosen: show these columns instead.

    Raises:
        UsageError: a column does not exist.
    """
    if style == "table":
        return render(listing_table(runs, chosen), "table") + counted(runs) + "\n"
    table = frame_of(runs)
    filled = table.dropna(axis="columns", how="all") if chosen is None else pick(table, chosen)
    if style == "csv":
        return str(filled.to_csv(index=False))
    return str(filled.to_json(orient="records", date_format="iso", indent=1)) + "\n"


def counted(runs: Runs) -> str:
    """Return `1 run` or `12 runs`."""
    return plural(len(runs), "run")


def _cell(value: Any, render: Callable[[Any], str], whole: bool) -> str:
    if value is None:
        return DASH
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    text = str(render(value))
    return text if whole or not is_id(text) else text[:SHORT_ID]
