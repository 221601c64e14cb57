"""Show the progress of a search: elapsed time, current action, the best so far, and how many may still win."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console

from llmtrack.decide.differences import ratio_text
from llmtrack.decide.goal import SearchState
from llmtrack.host.formatting import clock_text, significant
from llmtrack.run.study.progress import StudyProgress

_WIDEST = 4.0
"""Hide intervals whose ends differ by more than this factor: they are not informative yet."""


class SearchProgress(StudyProgress):
    """Progress of a search, as a context manager: a bar of its budget on a terminal, a line per step in a log.

    Args:
        seconds: the budget.
        began: start time by the clock.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self, console: Console, seconds: float, began: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._began, self._search_clock = seconds, began, clock
        self._best = ""
        self._last = ""
        super().__init__(console, 1, clock=clock)

    def __enter__(self) -> SearchProgress:
        super().__enter__()
        return self

    @property
    def times(self) -> str:
        """Elapsed time and budget."""
        return f"{clock_text(self._search_clock() - self._began)} of {clock_text(self._seconds)}"

    def at(self, state: SearchState) -> None:
        """Show the current action and the best so far."""
        self._best = best_text(state)
        step = state.doing.partition(", part")[0]
        if step != self._last:
            self._last = step
            self.line(f"  {self.times}  {state.doing}{f'  [{self._best}]' if self._best else ''}")
        self._show()

    def _show(self) -> None:
        share = min(1.0, (self._search_clock() - self._began) / max(self._seconds, 1e-9))
        self._bar.update(self._task, total=1.0, completed=share, where=self._best)


def best_text(state: SearchState) -> str:
    """Return `best so far: NAME 3.1x (2.8 to 3.4), 12 may win`; empty if there is none yet."""
    if not state.leader:
        return ""
    if state.ratio is not None and state.ratio.high < _WIDEST * state.ratio.low:
        told = f" {ratio_text(state.ratio)}"
    elif state.ratio is not None:
        told = f" about {ratio_text(state.ratio.value)}"
    else:
        told = f" {significant(state.value)}" if state.value is not None else ""
    return f"best so far: {state.leader}{told}, {state.alive} may win"
