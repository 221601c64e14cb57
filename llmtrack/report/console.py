"""The console for people, and for logs."""

from __future__ import annotations

from rich.console import Console

LOG_WIDTH = 1000


def make_console() -> Console:
    """Return the console for a command's output; in a log, lines are as wide as they need to be."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_WIDTH)
