"""Show the progress of a study, suite or search: a live line on a terminal, plain lines in a log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from llmtrack.decide.differences import ratio_text
from llmtrack.decide.goal import SearchState
from llmtrack.decide.verdicts import warning_kind
from llmtrack.host.console import on_one_line
from llmtrack.host.formatting import clock_text, plural, significant
from llmtrack.report.terminal import print_line
from llmtrack.spec.events import Event, Log, Warn
from llmtrack.spec.events import Progress as Step

_BAR = 20
QUIET_SECONDS = 60.0
"""Interval after which a status line is printed if nothing else was."""
_WIDEST = 4.0
"""Hide intervals whose ends differ by more than this factor: they are not informative yet."""


class StudyProgress:
    """Progress of one study, as a context manager.

    Args:
        took: last duration of the study in seconds.
    """

    def __init__(
        self,
        console: Console,
        scenarios: int,
        suite: SuiteProgress | None = None,
        took: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._clock = clock
        self._suite = suite or SuiteProgress({"": scenarios}, None if took is None else {"": took}, clock)
        self._ended = 0
        self._scenarios = scenarios
        self._shares: dict[str, float] = {}
        self._warned: set[str] = set()
        self._at = "loading"
        self._last_event = self._printed = clock()
        self._closed = threading.Event()
        self._bar = Progress(
            TextColumn("{task.fields[where]}", markup=False),
            BarColumn(bar_width=_BAR),
            _TimesAndStep(self, console),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("loading", total=self._suite.total, where="")
        self._show()

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        threading.Thread(target=self._watch, name="llmtrack-quiet", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._bar.stop()

    @property
    def times(self) -> str:
        """Elapsed time, and the estimated remaining time once known."""
        return time_text(self._suite.elapsed, self._suite.left(sum(self._shares.values())))

    def on_event(self, event: Event) -> None:
        """Show an event, if it is meant for display."""
        if isinstance(event, Log):
            self.line(event.text)
        elif isinstance(event, Warn):
            self.warn(event.text)
        elif isinstance(event, Step):
            self.step(event)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._last_event = self._printed = self._clock()
        print_line(self._console, text)

    def tick(self) -> None:
        """Print a status line after a period of silence, as something slow or hanging runs.

        On a terminal, the bar shows it while events arrive.
        """
        now = self._clock()
        silence = now - self._last_event
        if now - self._printed < QUIET_SECONDS or (self._console.is_terminal and silence < QUIET_SECONDS):
            return
        self._printed = now
        if silence < QUIET_SECONDS:
            print_line(self._console, f"    {self.times}, at {self._at}")
        else:
            print_line(self._console, f"    quiet for {clock_text(silence)}, still at: {self._at}")

    def warn(self, text: str) -> None:
        """Print a warning, only the first of its kind; the reading lists all runs that have it."""
        if (kind := warning_kind(text)) not in self._warned:
            self._warned.add(kind)
            self.line(f"    warning: {text}")

    def step(self, step: Step) -> None:
        """Show the current step."""
        self._last_event = self._clock()
        self._at = f"{step.scenario}: {step.step}"
        if step.done is not None:
            self._shares[step.scenario] = step.done
        self._bar.update(self._task, description=on_one_line(self._at))
        self._show()

    def ended(self, scenario: str, text: str) -> None:
        """Print how a scenario ended, and advance the bar."""
        self._at = "the next scenario"
        self._shares.pop(scenario, None)
        self._ended += 1
        self._suite.ended += 1
        self.line(text)
        self._show()

    def _watch(self) -> None:
        while not self._closed.wait(1.0):
            with contextlib.suppress(OSError):  # the terminal may be gone
                self.tick()

    def _show(self) -> None:
        count = f"scenario {min(self._ended + 1, self._scenarios)}/{self._scenarios}"
        where = f"{self._suite.current}, {count}" if self._suite.current else count
        self._bar.update(self._task, completed=self._suite.ended + sum(self._shares.values()), where=on_one_line(where))


class _TimesAndStep(ProgressColumn):
    """Times and current step of a study, refreshed with the bar, truncated to one line."""

    def __init__(self, progress: StudyProgress, console: Console) -> None:
        super().__init__()
        self._progress, self._console = progress, console

    def render(self, task: Task) -> Text:
        """Return both."""
        text = Text.assemble((self._progress.times, "progress.elapsed"), " ", task.description)
        room = self._console.width - _BAR - cell_len(task.fields["where"]) - 3
        text.truncate(max(room, 1), overflow="ellipsis")
        return text


class SuiteProgress:
    """Progress of a suite; each study's progress counts toward it.

    Args:
        took: last duration in seconds per experiment. If one is unknown, all scenarios count equally.
    """

    def __init__(
        self,
        scenarios: Mapping[str, int],
        took: Mapping[str, float] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scenarios = dict(scenarios)
        self._took: Mapping[str, float] = dict(took) if took and set(scenarios) <= set(took) else self._scenarios
        self._clock = clock
        self._began = clock()
        self.current = ""
        """Current experiment, such as `[2/7] prompt_length`."""
        self.ended = 0

    @property
    def total(self) -> int:
        """Number of scenarios."""
        return sum(self._scenarios.values())

    @property
    def elapsed(self) -> float:
        """Seconds since the suite started."""
        return self._clock() - self._began

    def left(self, shares: float = 0.0) -> float | None:
        """Estimate the remaining seconds, given the completed share of the current scenarios; None if unknown."""
        done, counted = 0.0, self.ended + shares
        for name, count in self._scenarios.items():
            done += self._took[name] * min(1.0, counted / count) if counted > 0 and count else 0.0
            counted -= count
        seconds = sum(self._took.values())
        if not done and self._took is not self._scenarios:
            return max(0.0, seconds - self.elapsed)
        return seconds_left(self.elapsed, done, seconds)

    def begin(self, experiment: str) -> str:
        """Start an experiment; return a line with its name and the suite's progress."""
        names = list(self._scenarios)
        number = names.index(experiment)
        # A failed experiment leaves scenarios unfinished, none of which will follow.
        self.ended = sum(self._scenarios[name] for name in names[:number])
        self.current = f"[{number + 1}/{len(names)}] {experiment}"
        times = time_text(self.elapsed, self.left())
        return f"{self.current}: {self.ended} of {plural(self.total, 'scenario')} done, {times}"


class SearchProgress(StudyProgress):
    """Progress of a search, as a context manager: a bar of its budget on a terminal, a line per step in a log."""

    def __init__(
        self, console: Console, seconds: float, began: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._began = seconds, began
        self._best = self._last = ""
        super().__init__(console, 1, clock=clock)

    def __enter__(self) -> SearchProgress:
        super().__enter__()
        return self

    @property
    def times(self) -> str:
        """Elapsed time and budget."""
        return f"{clock_text(self._clock() - self._began)} of {clock_text(self._seconds)}"

    def at(self, state: SearchState) -> None:
        """Show the current action and the best so far."""
        self._best = best_text(state)
        step = state.action.partition(", part")[0]
        if step != self._last:
            self._last = step
            self.line(f"  {self.times}  {state.action}{f'  [{self._best}]' if self._best else ''}")
        self._show()

    def _show(self) -> None:
        share = min(1.0, (self._clock() - self._began) / max(self._seconds, 1e-9))
        self._bar.update(self._task, total=1.0, completed=share, where=self._best)


def seconds_left(elapsed: float, finished: float, total: float) -> float | None:
    """Estimate the remaining seconds by the mean duration of the finished scenarios; None while nothing is finished.

    Args:
        finished: finished scenarios, with the known share of the current one.
    """
    if finished <= 0 or total <= 0:
        return None
    return max(0.0, elapsed / finished * (total - finished))


def time_text(elapsed: float, left: float | None) -> str:
    """Return `0:34, about 1:50 left`, or only the elapsed time if the rest is unknown."""
    return clock_text(elapsed) + (f", about {clock_text(left)} left" if left is not None else "")


def best_text(state: SearchState) -> str:
    """Return `best so far: NAME 3.1x (2.8 to 3.4), 12 may win`; empty if there is none yet."""
    if not state.leader:
        return ""
    if state.ratio is not None and state.ratio.high < _WIDEST * state.ratio.low:
        value = f" {ratio_text(state.ratio)}"
    elif state.ratio is not None:
        value = f" about {ratio_text(state.ratio.value)}"
    else:
        value = f" {significant(state.value)}" if state.value is not None else ""
    return f"best so far: {state.leader}{value}, {state.alive} may win"
