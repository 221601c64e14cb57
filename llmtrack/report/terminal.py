"""The console of a command: its width, and lines printed to a terminal or a log."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console

from llmtrack.host.console import neutral_console, on_one_line, protect_stream, replace_unencodable
from llmtrack.report.escape import plain

LOG_WIDTH = 1000


def make_console(outlive: bool = False, stderr: bool = False) -> Console:
    """Create the console for a command's output; log lines are not wrapped.

    Args:
        outlive: continue if the output can no longer be written, because it is secondary to measuring and tracking.
        stderr: write progress to standard error (see `run.study.study.end_study`).
    """
    stream = sys.stderr if stderr else sys.stdout
    stream = protect_stream(stream) if outlive else stream
    replace_unencodable(stream)
    width = None if neutral_console(file=stream).is_terminal else requested_width() or LOG_WIDTH
    return neutral_console(file=stream, stderr=stderr, highlight=False, emoji=False, width=width)


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
    lines = textwrap.wrap(text, max(width, indent + 20), subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(lines)


def print_line(console: Console, text: str) -> None:
    """Print a text without wrapping, as logs are also read by programs."""
    console.print(plain(text), soft_wrap=True)


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print sentences as bullet points."""
    for line in lines:
        console.print(plain(f"- {on_one_line(line)}"))
