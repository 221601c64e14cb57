"""Show how far a study, or a suite of them, is: a live line on a terminal, plain lines in a log."""

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

from llmtrack.decide.warned import warning_kind
from llmtrack.host.console import on_one_line
from llmtrack.host.words import clock_text, plural
from llmtrack.report.terminal import say
from llmtrack.spec.events import Event, Log, Warn
from llmtrack.spec.events import Progress as Step

_BAR = 20
QUIET_SECONDS = 60.0
"""After so long without a line, and again after so long, one says how far it is."""


def seconds_left(elapsed: float, finished: float, total: float) -> float | None:
    """Return about how many seconds are left, if the scenarios to come take as long as those that ended.

    Args:
        elapsed: seconds since the first scenario began.
        finished: scenarios that ended, with the known share of the one that is being measured.
        total: scenarios in all.

    Returns:
        None while nothing has ended: there is nothing to go by.
    """
    if finished <= 0 or total <= 0:
        return None
    return max(0.0, elapsed / finished * (total - finished))


def time_text(elapsed: float, left: float | None) -> str:
    """Return `0:34, about 1:50 left`, or only the time that has passed where nothing more is known."""
    return clock_text(elapsed) + (f", about {clock_text(left)} left" if left is not None else "")


class SuiteProgress:
    """How far a suite is; each study's progress counts into it.

    Args:
        scenarios: how many scenarios each experiment will measure, by its name, in order.
        took: how many seconds each took the last time. Where one is not known, a scenario counts like any other.
        clock: returns seconds; monotonic.
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
        """Which experiment it is at, such as `[2/7] prompt_length`."""
        self.ended = 0

    @property
    def total(self) -> int:
        """Scenarios in all."""
        return sum(self._scenarios.values())

    @property
    def elapsed(self) -> float:
        """Seconds since the suite began."""
        return self._clock() - self._began

    def left(self, shares: float = 0.0) -> float | None:
        """Return about how many seconds are left; None while there is nothing to go by.

        Args:
            shares: how much of the scenarios that are being measured is done.
        """
        done, counted = 0.0, self.ended + shares
        for name, count in self._scenarios.items():
            done += self._took[name] * min(1.0, counted / count) if counted > 0 and count else 0.0
            counted -= count
        whole = sum(self._took.values())
        if not done and self._took is not self._scenarios:
            return max(0.0, whole - self.elapsed)
        return seconds_left(self.elapsed, done, whole)

    def begin(self, experiment: str) -> str:
        """Go on to an experiment; return the line that says so and how far the suite is."""
        names = list(self._scenarios)
        number = names.index(experiment)
        # An experiment that broke has not ended all its scenarios, and none of them is to come.
        self.ended = sum(self._scenarios[name] for name in names[:number])
        self.current = f"[{number + 1}/{len(names)}] {experiment}"
        times = time_text(self.elapsed, self.left())
        return f"{self.current}: {self.ended} of {plural(self.total, 'scenario')} done, {times}"


class StudyProgress:
    """The progress of one study, as a context manager.

    Args:
        console: where lines go.
        scenarios: how many scenarios will be measured.
        suite: the suite that the study is part of.
        took: how many seconds the study took the last time.
        clock: returns seconds; monotonic.
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
        self._heard = self._said = clock()
        self._left = threading.Event()
        self._bar = Progress(
            TextColumn("{task.fields[where]}", markup=False),
            BarColumn(bar_width=_BAR),
            _Told(self, console),
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
        self._left.set()
        self._bar.stop()

    @property
    def times(self) -> str:
        """The time that has passed and, as soon as that is known, about how much is left."""
        return time_text(self._suite.elapsed, self._suite.left(sum(self._shares.values())))

    def hear(self, event: Event) -> None:
        """Show what an event says of how it goes, if that is what it is for."""
        if isinstance(event, Log):
            self.line(event.text)
        elif isinstance(event, Warn):
            self.warn(event.text)
        elif isinstance(event, Step):
            self.step(event)

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._heard = self._said = self._clock()
        say(self._console, text)

    def tick(self) -> None:
        """Say how far it is if nothing was said for a while: something long, or something that hangs.

        On a terminal the bar says it, as long as there is something to tell.
        """
        now = self._clock()
        quiet = now - self._heard
        if now - self._said < QUIET_SECONDS or (self._console.is_terminal and quiet < QUIET_SECONDS):
            return
        self._said = now
        if quiet < QUIET_SECONDS:
            say(self._console, f"    {self.times}, at {self._at}")
        else:
            say(self._console, f"    quiet for {clock_text(quiet)}, still at: {self._at}")

    def warn(self, text: str) -> None:
        """Print a warning, the first of its kind; the reading has all runs that carry it."""
        if (kind := warning_kind(text)) not in self._warned:
            self._warned.add(kind)
            self.line(f"    warning: {text}")

    def step(self, step: Step) -> None:
        """Show what is being done."""
        self._heard = self._clock()
        self._at = f"{step.scenario}: {step.step}"
        if step.done is not None:
            self._shares[step.scenario] = step.done
        self._bar.update(self._task, description=on_one_line(self._at))
        self._show()

    def ended(self, scenario: str, text: str) -> None:
        """Print how a scenario ended and advance the bar."""
        self._at = "the next scenario"
        self._shares.pop(scenario, None)
        self._ended += 1
        self._suite.ended += 1
        self.line(text)
        self._show()

    def _watch(self) -> None:
        while not self._left.wait(1.0):
            with contextlib.suppress(OSError):  # nobody may be there to read it
                self.tick()

    def _show(self) -> None:
        count = f"scenario {min(self._ended + 1, self._scenarios)}/{self._scenarios}"
        where = f"{self._suite.current}, {count}" if self._suite.current else count
        self._bar.update(self._task, completed=self._suite.ended + sum(self._shares.values()), where=on_one_line(where))


class _Told(ProgressColumn):
    """The times of a study and its step, told anew whenever the bar is drawn, as far as one line has room for them."""

    def __init__(self, progress: StudyProgress, console: Console) -> None:
        super().__init__()
        self._progress, self._console = progress, console

    def render(self, task: Task) -> Text:
        """Return both."""
        text = Text.assemble((self._progress.times, "progress.elapsed"), " ", task.description)
        room = self._console.width - _BAR - cell_len(task.fields["where"]) - 3
        text.truncate(max(room, 1), overflow="ellipsis")
        return text
