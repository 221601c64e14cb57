"""List tracked runs as text: a narrow table for people, CSV or JSON with every column for programs."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

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


def render_runs(runs: pd.DataFrame, style: str = "table") -> str:
    """Return runs as text.

    Args:
        runs: what `llmtrack.runs` returned.
        style: `table` (the main columns), `csv` or `json` (every column that any run has).
    """
    if style == "csv":
        return str(runs.dropna(axis="columns", how="all").to_csv(index=False))
    if style == "json":
        return (
            str(runs.dropna(axis="columns", how="all").to_json(orient="records", date_format="iso", indent=1))
            + "\n"
        )
    return _table(runs)


def _table(runs: pd.DataFrame) -> str:
    import pandas as pd
    from rich import box
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in LISTED:
        drawn.add_column(
            name, justify="right" if name in ("tokens_per_sec", "perplexity") else "left", no_wrap=True
        )
    for _, run in runs.iterrows():
        cells = []
        for name in LISTED:
            value = run.get(name)
            if value is None or pd.isna(value):
                cells.append("–")
            elif name == "start_time":
                cells.append(f"{value:%Y-%m-%d %H:%M}")
            elif isinstance(value, float):
                cells.append(f"{value:.2f}")
            else:
                cells.append(str(value)[:8] if name == "run_id" else str(value))
        drawn.add_row(*cells)
    buffer = io.StringIO()
    console = Console(file=buffer, width=sum(LISTED.values()) + 40)
    console.print(drawn)
    console.print(f"{len(runs)} run(s)")
    return buffer.getvalue()
