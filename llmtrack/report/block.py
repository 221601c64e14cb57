"""The metrics block: every headline metric of one run, a line each, with its unit and spread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtrack import metrics as schema

if TYPE_CHECKING:
    import pandas as pd


def metrics_block(run: pd.Series) -> list[str]:
    """Return lines such as `tokens_per_sec  13.94 tokens/s  [13.80, 14.02] n=5`."""
    import pandas as pd

    lines = []
    for metric in schema.METRICS:
        value = run.get(metric.name)
        if value is None or pd.isna(value):
            continue
        line = f"{metric.name:<30}{value:>12,.3f} {metric.unit}"
        count = run.get(f"spread/{metric.name}.n")
        low, high = (run.get(f"spread/{metric.name}.{end}") for end in ("ci_low", "ci_high"))
        if count is not None and not pd.isna(count) and count > 1 and low != high:
            line += f"  [95 % interval {low:,.3f} to {high:,.3f}, n={count:.0f}]"
        lines.append(line.rstrip())
    return lines
