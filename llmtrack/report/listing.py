"""List tracked runs as text: a narrow table for people, CSV or JSON with every column for programs."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmtrack.report.escape import on_one_line, plain

if TYPE_CHECKING:
    import pandas as pd

LISTED = {
    "run_id": 12,
    "start_time": 16,
    "experiment": 16,
    "scenario": 20,
    "status": 8,
    "model_id": 24,
    "dtype": 14,
    "tokens_per_sec": 9,
    "perplexity": 10,
}


def render_runs(runs: pd.DataFrame, style: str = "table", chosen: bool = False) -> str:
    """Return runs as text.

    Args:
        runs: what `llmtrack.runs` returned.
        style: `table` (the main columns), `csv` or `json` (every column that any run has).
        chosen: the columns were chosen: show all of them.
    """
    if style == "table":
        return _table(runs, {str(name): 16 for name in runs.columns} if chosen else LISTED)
    filled = runs if chosen else runs.dropna(axis="columns", how="all")
    if style == "csv":
        return str(filled.to_csv(index=False))
    return str(filled.to_json(orient="records", date_format="iso", indent=1)) + "\n"


def _table(runs: pd.DataFrame, listed: Mapping[str, int]) -> str:
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in listed:
        numeric = name in runs.columns and pd.api.types.is_float_dtype(runs[name])
        drawn.add_column(plain(name), justify="right" if numeric else "left", no_wrap=True)
    for _, run in runs.iterrows():
        cells = []
        for name in listed:
            value = run.get(name)
            if value is None or pd.isna(value):
                cells.append("–")
            elif isinstance(value, pd.Timestamp):
                cells.append(f"{value:%Y-%m-%d %H:%M}")
            elif isinstance(value, float):
                cells.append(f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}")
            else:
                cells.append(str(value)[:8] if name == "run_id" and listed is LISTED else str(value))
        drawn.add_row(*(plain(on_one_line(cell)) for cell in cells))
    buffer = io.StringIO()
    console = Console(file=buffer, width=10_000 if listed is not LISTED else sum(LISTED.values()) + 40)
    console.print(drawn)
    console.print(f"{len(runs)} run(s)")
    return buffer.getvalue()
