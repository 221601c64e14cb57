"""Run experiments from Python, in notebooks and scripts: `llmtrack.run("precision", dtypes=["float32"])`."""

from __future__ import annotations

import difflib
import html
import io
import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from llmtrack.errors import TrackingError, UsageError, refused_by_system
from llmtrack.experiment import Experiment
from llmtrack.host.console import neutral_console
from llmtrack.host.entry_points import EXPERIMENT_POINTS, named_experiment, names_of
from llmtrack.report.escape import neutralize
from llmtrack.report.tables.rendering import render
from llmtrack.report.tables.summary import summary_table, tables_by_task
from llmtrack.report.tables.table import Table
from llmtrack.report.terminal import make_console
from llmtrack.run.main import perform
from llmtrack.run.settings import unknown_parameter
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import require_text
from llmtrack.tracked.frames import frame_of
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

_LINES = 12
_WIDTH = 160


@dataclass(frozen=True)
class Finished:
    """A finished study with its table and reading, as displayed in a notebook.

    Attributes:
        experiment: name of the experiment.
        study_id: accepted wherever a study is named: `llmtrack.report(study)`.
        tracked: its runs.
        reading: interpretation of the runs.
        problems: parts of its report that failed, and why.
        tracking_uri: its store.
        asked: the experiment; None for a suite.
    """

    experiment: str
    study_id: str
    tracked: Runs = field(repr=False)
    reading: tuple[str, ...]
    problems: tuple[str, ...]
    tracking_uri: str
    asked: Experiment | None = field(repr=False)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """Its scenarios, one per row, with the columns of `llmtrack.runs`."""
        return frame_of(self.tracked)

    @property
    def table(self) -> Table:
        """Its table, as in the study's report."""
        return summary_table(self.tracked, own=self.asked.table if self.asked else None)

    @property
    def tables(self) -> Mapping[str, Table]:
        """Its table by name; for a suite, one per task."""
        return {self.experiment: self.table} if self.asked else tables_by_task(self.tracked)

    def __repr__(self) -> str:
        tables = "\n".join(render(table, "table", title) for title, table in self.tables.items())
        return tables + "".join(f"- {line}\n" for line in self.reading)

    def _repr_html_(self) -> str:
        tables = "".join(render(table, "html", title) for title, table in self.tables.items())
        return f"{tables}<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in self.reading)}</ul>\n"


def run(experiment: str, *, console: Console | None = None, quiet: bool = False, **options: Any) -> Finished:
    """Run an experiment as the same tracked study as `mlflow run . -e EXPERIMENT`.

    `llmtrack.run("precision", model="synthetic:tiny", dtypes=["float32", "bfloat16"])` compares two precisions. Type
    checkers know the parameters of each experiment (`llmtrack/run/typed.pyi`).

    Args:
        experiment: name, such as `precision`.
        console: where progress, table and reading are printed; None for progress on stderr, or in a display in a
            notebook.
        quiet: show no progress.
        options: parameters by the names of docs/commands.md, lists as lists: `model="synthetic:tiny"`,
            `dtypes=["float32", "bfloat16"]`; `executor="inline"` measures in this process.

    Returns:
        Its runs, table and reading; `print` shows them, and so does a notebook.

    Raises:
        UsageError: the experiment or a parameter does not exist, or a value is invalid.
        TrackingError: the store rejects the study, or could not be read; what was measured is kept.
    """
    module = named_experiment(require_text("experiment", experiment))
    if module is None or not hasattr(module, "main"):
        raise UsageError(f"there is no experiment {experiment!r}{near_names(experiment)}")
    known = {parameter.name: parameter for parameter in parameters(module.main.config)}
    for name in options:
        if name not in known:
            raise unknown_parameter(experiment, module.main.config, name, options[name])
    config = module.main.config(**{name: known[name].accept(value) for name, value in options.items()})
    output = console or progress_console(quiet)
    if hasattr(module, "perform"):  # not a fixed list of scenarios: a suite or a search
        performed = module.perform(config, output)
    else:
        performed = perform(module.DECLARED.experiment(config), config, output)
    study_id, tracked = performed.result.study.study_id, performed.result.tracked
    if tracked is None:
        reasons = "; ".join(performed.result.problems) or "the tracking server could not be reached"
        raise TrackingError(f"study {study_id} is measured, but could not be read back: {reasons}")
    return Finished(
        experiment,
        study_id,
        tracked,
        performed.result.reading,
        performed.result.problems,
        performed.tracker.tracking_uri,
        performed.experiment,
    )


def report(study: str | Finished, folder: str | Path = ".", *, tracking_uri: str | None = None) -> Path:
    """Write the report of a study or suite to a folder; return its page, a self-contained HTML file.

    Args:
        study: result of `llmtrack.run`, or a study selector: an id, `latest`, `latest:precision`.
        folder: for the page, table and plots.
        tracking_uri: the store, unless given by the study; see `llmtrack.tracking.uri.resolve_tracking_uri`.

    Raises:
        UsageError: there is no such study, or its page could not be made.
        TrackingError: the store cannot be used.
    """
    from llmtrack.report.page.reports import rebuild_report

    name, uri = (study.study_id, study.tracking_uri) if isinstance(study, Finished) else (study, tracking_uri)
    target = Path(os.path.expanduser(require_text("folder", folder)))
    try:
        problems = rebuild_report(require_text("study", name), neutral_console(file=io.StringIO()), uri, target)
    except OSError as error:
        raise UsageError(f"the report cannot be written: {refused_by_system(error)}") from error
    page = target / "report.html"
    if not page.is_file():
        raise UsageError(f"the report of {name} could not be made: {'; '.join(problems)}")
    return page


def near_names(experiment: str) -> str:
    """Return `: did you mean precision?` for an unknown experiment, or the names that exist."""
    baseline = named_experiment("baseline")
    names = [*import_module(str(baseline.__package__)).declarations(), "suite"] if baseline is not None else []
    names += names_of(EXPERIMENT_POINTS)
    matches = difflib.get_close_matches(experiment, names, n=2)
    if matches:
        return f": did you mean {' or '.join(matches)}?"
    return f": there are {', '.join(names)}" if names else ""


def progress_console(quiet: bool = False) -> Console:
    """Return a console for progress: a display in a notebook, else stderr; none if quiet."""
    if quiet:
        return neutral_console(file=io.StringIO(), stderr=True, width=_WIDTH)
    if in_notebook():
        return neutral_console(
            file=NotebookDisplay(), stderr=True, width=_WIDTH, highlight=False, emoji=False, force_terminal=False
        )
    return make_console(outlive=True, stderr=True)


def in_notebook() -> bool:
    """Return whether the program runs in a Jupyter kernel."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return hasattr(get_ipython(), "kernel")


class NotebookDisplay(io.TextIOBase):
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
            lines = html.escape(neutralize("\n".join(self._lines).strip("\n")))
            self._handle.update(self._show.HTML(f"<pre>{lines}</pre>"))
        return len(text)
