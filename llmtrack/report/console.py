"""The console for people, and for logs."""

from __future__ import annotations

import sys

from rich.console import Console

from llmtrack.output import protected, replace_unknown
from llmtrack.report.escape import plain

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
