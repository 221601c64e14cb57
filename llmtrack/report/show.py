"""Print a table, a list of runs, or the metrics of a run, in the requested format, columns and width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console

from llmtrack import metrics as schema
from llmtrack.host.console import emit
from llmtrack.host.formatting import plural
from llmtrack.report.tables.rendering import print_table, render
from llmtrack.report.tables.table import DASH, ExtraValues, Table, column_of_runs, with_columns
from llmtrack.report.terminal import make_console, print_line
from llmtrack.tracked.frames import check_columns, column_names, frame_of, pick
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.lookup import SHORT_ID, is_id

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
"""Columns of a list of runs."""
_METRIC_WIDTH = 1 + max(len(metric.name) for metric in schema.METRICS if metric.shown or metric.sampled)


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


def show(console: Console, title: str, table: Table, layout: Layout, extra: ExtraValues | None = None) -> None:
    """Print a table.

    Args:
        extra: further values of its rows, available as columns.

    Raises:
        UsageError: a column does not exist.
    """
    if layout.columns is not None:
        check_columns(layout.columns, [*dict.fromkeys([*table.keys, *(extra.names if extra else ())])])
        table = with_columns(table, extra, layout.columns)
    if layout.style != "table":
        emit(console, render(table, layout.style, title))
        return
    print_table(console, title, table, wide=layout.wide)


def show_runs(runs: Runs, layout: Layout) -> None:
    """Print runs: as a table of the main columns, or for programs with every column that any run has.

    Raises:
        UsageError: a column does not exist.
    """
    console = make_console()
    if layout.style != "table":
        emit(console, render_runs(runs, layout.style, layout.columns))
        return
    show(console, "", listing_table(runs, layout.columns), Layout(wide=layout.wide))
    print_line(console, plural(len(runs), "run"))


def render_runs(runs: Runs, style: str, chosen: Sequence[str] | None = None) -> str:
    """Render runs for programs, as `csv` or `json`: every column that any run has, or the chosen ones.

    Raises:
        UsageError: a column does not exist.
    """
    table = frame_of(runs)
    filled = table.dropna(axis="columns", how="all") if chosen is None else pick(table, chosen)
    return frame_text(filled, style)


def frame_text(frame: pd.DataFrame, style: str) -> str:
    """Render a DataFrame for programs, as `csv` or `json`."""
    if style == "csv":
        return str(frame.to_csv(index=False))
    return str(frame.to_json(orient="records", date_format="iso", indent=1)) + "\n"


def listing_table(runs: Runs, chosen: Sequence[str] | None = None) -> Table:
    """Lay out a row per run.

    Args:
        chosen: columns to show; None for the main ones.

    Raises:
        UsageError: a column does not exist.
    """
    if chosen is not None:
        check_columns(chosen, column_names(runs))
    keys = LISTED if chosen is None else tuple(chosen)
    columns = [column_of_runs(key, runs) for key in keys]
    return Table(
        conditions=(),
        titles=keys,
        numeric=tuple(column.is_number for column in columns),
        rows=tuple(
            tuple(_cell(run.get(column.key), column.render, chosen is not None) for column in columns) for run in runs
        ),
        run_ids=("",) * len(runs),
        keys=keys,
    )


def metrics_block(run: Run, width: int | None = None) -> list[str]:
    """Format a line per metric, such as `tokens_per_sec  13.94 tokens/s  [95 % interval 13.80 to 14.02, n=5]`.

    Args:
        width: of the terminal; intervals that do not fit go on their own line.
    """
    lines = []
    for metric in schema.METRICS:
        if (value := run.metrics.get(metric.name)) is None:
            continue
        unit = "" if metric.unit == "-" else f" {metric.unit}"
        line = f"{metric.name:<{_METRIC_WIDTH}}{value:>12,.3f}{unit}"
        spread = run.spread(metric.name)
        if spread is not None and spread.n > 1 and spread.low != spread.high:
            interval = f"[95 % interval {spread.low:,.3f} to {spread.high:,.3f}, n={spread.n}]"
            if width is not None and len(line) + 2 + len(interval) > width:
                lines.append(line.rstrip())
                line = f"{interval:>{width}}" if len(interval) < width else interval
            else:
                line += f"  {interval}"
        lines.append(line.rstrip())
    return lines


def _cell(value: Any, render: Callable[[Any], str], full_ids: bool) -> str:
    if value is None:
        return DASH
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M}"
    text = str(render(value))
    return text if full_ids or not is_id(text) else text[:SHORT_ID]
