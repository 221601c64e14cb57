"""Show how far a study is: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from llmtrack.run.events import Progress as Step


class StudyProgress:
    """The progress of one study, as a context manager.

    Args:
        console: where lines go.
        scenarios: how many scenarios will be measured.
    """

    def __init__(self, console: Console, scenarios: int) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.completed:.0f}/{task.total:.0f} scenarios"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._warned: set[str] = set()
        self._task = self._bar.add_task("loading", total=scenarios)

    def __enter__(self) -> StudyProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        # A log is read by programs too: its lines are not wrapped at a guessed width.
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning, the first time that it is given."""
        if text not in self._warned:
            self._warned.add(text)
            self.line(f"    warning: {text}")

    def step(self, step: Step) -> None:
        """Show what is being done."""
        self._bar.update(self._task, description=escape(f"{step.scenario}: {step.step}"))

    def ended(self, scenario: str, text: str) -> None:
        """Print how a scenario ended and advance the bar."""
        self.line(text)
        self._bar.advance(self._task)
