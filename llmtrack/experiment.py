"""An experiment: a question, the scenarios that answer it, and how the answer is drawn and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmtrack.report.table import Focus
from llmtrack.scenario import Scalar, Scenario

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SeriesOf = Callable[[str, str], list[float]]
Plots = Callable[["pd.DataFrame", SeriesOf], Mapping[str, "Figure"]]
Reading = Callable[["pd.DataFrame"], list[str]]


@dataclass(frozen=True)
class Experiment:
    """A named list of scenarios with a question.

    Attributes:
        name: name of the entry point.
        question: what it answers, in one sentence.
        scenarios: what to measure, the baseline among them.
        plots: draws figures, by file name without suffix, from the tracked runs and a function that reads
            a tracked series by run id and name.
        reading: 3 to 5 lines of what the tracked runs say.
        settings: resolved settings, tracked with the study as `cfg.NAME`.
        show_block: print every metric of each run, not only the table.
        focus: what its own table is about; None: everything that is tracked.
        follow: in a suite, returns what is really measured, from the runs that were tracked before it; the scenarios keep
            their names.
    """

    name: str
    question: str
    scenarios: tuple[Scenario, ...]
    plots: Plots
    reading: Reading
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    show_block: bool = False
    focus: Focus | None = None
    follow: Callable[[pd.DataFrame], Experiment] | None = None
