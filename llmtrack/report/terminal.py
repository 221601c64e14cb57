"""Terminal and log output beside tables: the console, a run's metrics, a recommendation."""

from __future__ import annotations

import os
import sys
import textwrap

from rich.cells import cell_len
from rich.console import Console

from llmtrack import metrics as schema
from llmtrack.decide.recommending import Recommendation
from llmtrack.host.console import console_of, protected, replace_unknown
from llmtrack.report.escape import plain
from llmtrack.tracked.run import Run

LOG_WIDTH = 1000
_NAMES = 1 + max(len(metric.name) for metric in schema.METRICS if metric.shown or metric.sampled)


def make_console(outlive: bool = False, stderr: bool = False) -> Console:
    """Return the console for a command's output; log lines are not wrapped.

    Args:
        outlive: continue if the output can no longer be written, because it is secondary to measuring and tracking.
        stderr: write progress to standard error (see `run.study.ending.end_study`).
    """
    stream = sys.stderr if stderr else sys.stdout
    stream = protected(stream) if outlive else stream
    replace_unknown(stream)
    width = None if console_of(file=stream).is_terminal else requested_width() or LOG_WIDTH
    return console_of(file=stream, stderr=stderr, highlight=False, emoji=False, width=width)


def width_of(console: Console) -> int | None:
    """Return the available columns, or None in a log or pipe without COLUMNS."""
    return console.width if console.is_terminal else requested_width()


def requested_width() -> int | None:
    """Return the width set by COLUMNS, or None."""
    columns = os.environ.get("COLUMNS", "").strip()
    return int(columns) if columns.isdecimal() and int(columns) > 0 else None


def hanging(text: str, width: int | None, indent: int = 2) -> str:
    """Wrap a line with a hanging indent; unchanged without a width."""
    if width is None or cell_len(text) <= width:
        return text
    return "\n".join(
        textwrap.wrap(
            text,
            max(width, indent + 20),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
    )


def say(console: Console, text: str) -> None:
    """Print a text without wrapping, as logs are also read by programs."""
    console.print(plain(text), soft_wrap=True)


def render_recommendation(found: Recommendation, width: int | None = None) -> str:
    """Format a recommendation: a sentence and what was ruled out."""
    lines = [hanging(found.sentence, width, 0)]
    if found.run_id is not None:
        lines.append(f"  run {found.run_id}")
    if found.ruled_out:
        longest = max(len(name) for name, _ in found.ruled_out)
        lines.append("Not:")
        lines += [hanging(f"  {name:<{longest}}  {why}", width, 4) for name, why in found.ruled_out]
    return "\n".join([*lines, *(hanging(f"- {note}", width) for note in found.notes)]) + "\n"


def metrics_block(run: Run, width: int | None = None) -> list[str]:
    """Return lines such as `tokens_per_sec  13.94 tokens/s  [95 % interval 13.80 to 14.02, n=5]`.

    Args:
        width: of the terminal; intervals that do not fit go on their own line.
    """
    lines = []
    for metric in schema.METRICS:
        if (value := run.metrics.get(metric.name)) is None:
            continue
        unit = "" if metric.unit == "-" else f" {metric.unit}"
        line = f"{metric.name:<{_NAMES}}{value:>12,.3f}{unit}"
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
