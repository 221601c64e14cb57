"""What a terminal or a log is shown beside tables: the console itself, the block of one run, a recommendation."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from llmtrack import metrics as schema
from llmtrack.decide.recommending import Recommendation
from llmtrack.output import protected, replace_unknown
from llmtrack.report.escape import plain

if TYPE_CHECKING:
    import pandas as pd


LOG_WIDTH = 1000


def make_console(outlive: bool = False) -> Console:
    """Return the console for a command's output; in a log, lines are as wide as they need to be.

    Args:
        outlive: go on if its output cannot be written any more, since it is beside what is measured and tracked.
    """
    stream = protected(sys.stdout) if outlive else sys.stdout
    replace_unknown(stream)
    width = None if Console(file=stream).is_terminal else LOG_WIDTH
    return Console(file=stream, highlight=False, emoji=False, width=width)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text as it is, in lines that are not wrapped at a guessed width: a log is read by programs too."""
    console.print(plain(text, style), soft_wrap=True)


def render_recommendation(found: Recommendation, style: str = "table") -> str:
    """Return a recommendation as text: a sentence and what was ruled out, or JSON."""
    if style == "json":
        return json.dumps(dataclasses.asdict(found), indent=1, ensure_ascii=False) + "\n"
    lines = [found.sentence]
    if found.run_id is not None:
        lines.append(f"  run {found.run_id}")
    if found.ruled_out:
        width = max(len(name) for name, _ in found.ruled_out)
        lines += ["Not:", *(f"  {name:<{width}}  {why}" for name, why in found.ruled_out)]
    return "\n".join([*lines, *(f"- {note}" for note in found.notes)]) + "\n"


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
