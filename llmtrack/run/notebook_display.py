"""Show the progress of `llmtrack.run`: lines on stderr or, in a notebook, a display of the last ones."""

from __future__ import annotations

import html
import io
import sys
from collections import deque
from importlib import import_module
from typing import Any

from rich.console import Console

from llmtrack.host.console import console_of
from llmtrack.report.escape import shown
from llmtrack.report.terminal import make_console

_LINES = 12
_WIDTH = 160


def progress_console(quiet: bool = False) -> Console:
    """Return a console for progress: a display in a notebook, else stderr; none if quiet."""
    if quiet:
        return console_of(file=io.StringIO(), stderr=True, width=_WIDTH)
    if in_notebook():
        return console_of(file=Cell(), stderr=True, width=_WIDTH, highlight=False, emoji=False, force_terminal=False)
    return make_console(outlive=True, stderr=True)


def in_notebook() -> bool:
    """Return whether the program runs in a Jupyter kernel."""
    ask = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(ask(), "kernel")


class Cell(io.TextIOBase):
    """A text stream whose last lines are shown in one notebook display."""

    def __init__(self) -> None:
        self._show: Any = import_module("IPython.display")
        self._lines: deque[str] = deque([""], maxlen=_LINES)
        self._handle = self._show.display(self._show.HTML(""), display_id=True)

    def write(self, text: str) -> int:
        """Write text; completed lines are displayed."""
        first, *more = text.split("\n")
        self._lines[-1] += first
        self._lines.extend(more)
        if more:
            told = html.escape(shown("\n".join(self._lines).strip("\n")))
            self._handle.update(self._show.HTML(f"<pre>{told}</pre>"))
        return len(text)
