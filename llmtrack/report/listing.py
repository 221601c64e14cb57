"""List tracked runs: a narrow table for people, CSV or JSON with every column for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmtrack.output import emit
from llmtrack.report.columns import column_of
from llmtrack.report.formats import render
from llmtrack.report.show import Layout, show
from llmtrack.report.table import DASH, Table
from llmtrack.report.terminal import make_console, say
from llmtrack.tracking import ask
from llmtrack.tracking.ids import SHORT_ID, is_id
from llmtrack.words import plural

if TYPE_CHECKING:
    import pandas as pd

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


def listing_table(runs: pd.DataFrame, chosen: bool = False) -> Table:
    """Return a row for each run.

    Args:
        runs: what `llmtrack.runs` returned.
        chosen: the columns were chosen: all of them, whole; else the main ones.
    """
    keys = tuple(map(str, runs.columns)) if chosen else LISTED
    columns = [column_of(key, runs) for key in keys]
    rows = tuple(
        tuple(_cell(run.get(column.key), column.render, chosen) for column in columns)
        for _, run in runs.iterrows()
    )
    return Table(
        conditions=(),
        titles=keys,
        numeric=tuple(column.is_number for column in columns),
        rows=rows,
        run_ids=("",) * len(rows),
        keys=keys,
    )


def show_runs(runs: pd.DataFrame, layout: Layout) -> None:
    """Print runs; see `render_runs` for what is in which format."""
    console, chosen = make_console(), layout.columns is not None
    if layout.style != "table":
        emit(console, render_runs(runs, layout.style, chosen))
        return
    show(console, "", listing_table(runs, chosen), Layout(wide=layout.wide))
    say(console, counted(runs))


def render_runs(runs: pd.DataFrame, style: str = "table", chosen: bool = False) -> str:
    """Return runs as text.

    Args:
        runs: what `llmtrack.runs` returned.
        style: `table` (the main columns), `csv` or `json` (every column that any run has).
        chosen: the columns were chosen: show all of them.
    """
    if style == "table":
        return render(listing_table(runs, chosen), "table") + counted(runs) + "\n"
    filled = runs if chosen else runs.dropna(axis="columns", how="all")
    if style == "csv":
        return str(filled.to_csv(index=False))
    return str(filled.to_json(orient="records", date_format="iso", indent=1)) + "\n"


def counted(runs: pd.DataFrame) -> str:
    """Return `1 run` or `12 runs`."""
    return plural(len(runs), "run")


def _cell(value: Any, render: Callable[[Any], str], whole: bool) -> str:
    import pandas as pd

    if ask.missing(value):
        return DASH
    if isinstance(value, pd.Timestamp):
        return f"{value:%Y-%m-%d %H:%M}"
    text = str(render(value))
    return text if whole or not is_id(text) else text[:SHORT_ID]
