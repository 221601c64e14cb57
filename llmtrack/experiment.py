"""An experiment: a question, the scenarios that answer it, and how the answer is drawn and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llmtrack.spec.options import changed, tracked
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.tracked.frames import frame_of
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SeriesOf = Callable[[str, str], list[float]]
# What is given to them, `Experiment.typed` says.
Plots = Callable[[Any, SeriesOf], Mapping[str, "Figure"]]
Reading = Callable[[Any], list[str]]
Config = TypeVar("Config")


def always() -> bool:
    """Return that it is so."""
    return True


def as_it_is(config: Config) -> Config:
    """Return a config as it is."""
    return config


def draw_nothing(runs: object, series: SeriesOf) -> Mapping[str, Figure]:
    """Draw no figure."""
    return {}


def say_nothing(runs: object) -> list[str]:
    """Say nothing beyond the table."""
    return []


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
        table: what its own table is about; None: everything that is tracked.
        asked: parameters that are not as by default, as the command line takes them: by these it is measured again.
        typed: whether `plots` and `reading` take `Runs`, as those of this project do, or a DataFrame, as `llmtrack.runs`
            returns it.
        follow: in a suite, returns what is really measured, from the runs that were tracked before it; the scenarios keep
            their names.
    """

    name: str
    question: str
    scenarios: tuple[Scenario, ...]
    plots: Plots = draw_nothing
    reading: Reading = say_nothing
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    show_block: bool = False
    table: OwnTable | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    typed: bool = False
    follow: Callable[[Runs], Experiment] | None = None

    def draw(self, runs: Runs, series: SeriesOf) -> Mapping[str, Figure]:
        """Draw figures of tracked runs; see `plots`."""
        return self.plots(runs if self.typed else frame_of(runs), series)

    def read(self, runs: Runs) -> list[str]:
        """Say what tracked runs say; see `reading`."""
        return self.reading(runs if self.typed else frame_of(runs))


@dataclass(frozen=True)
class Declaration(Generic[Config]):
    """An experiment as its file declares it: the command, MLproject, the suite, README's table and docs/commands.md come from it.

    Attributes:
        name: name of the entry point and of the file.
        question: what it answers, in one sentence.
        config: its parameters, a frozen dataclass (see `llmtrack.options`).
        build: makes the experiment from a config, by `asking`.
        plots: see `Experiment`.
        reading: see `Experiment`.
        table: see `Experiment`.
        show_block: see `Experiment`.
        position: place in the suite, where what wants one loaded model stands together; None: not in the suite.
        in_suite: what the suite asks of it, from the config that the suite's own parameters make.
        quick: what the quick suite asks of it, from what the suite asks.
        first_look: whether the quick suite runs it without being asked by name.
        applies: whether the suite runs it without being asked by name on this installation.
        more: what README says after the question, in Markdown.
        typed: see `Experiment`.
    """

    name: str
    question: str
    config: type[Config]
    build: Callable[[Config], Experiment]
    plots: Plots = draw_nothing
    reading: Reading = say_nothing
    table: OwnTable | None = None
    show_block: bool = False
    position: int | None = None
    in_suite: Callable[[Config], Config] = as_it_is
    quick: Callable[[Config], Config] = as_it_is
    first_look: bool = True
    applies: Callable[[], bool] = always
    more: str = ""
    typed: bool = False

    def asking(self, config: Config, scenarios: Sequence[Scenario], **resolved: Any) -> Experiment:
        """Return the experiment that measures some scenarios.

        Args:
            config: what was asked.
            scenarios: what to measure for it, the baseline among them.
            resolved: what a parameter came to mean, and what else is to be tracked with the study.
        """
        return Experiment(
            self.name,
            self.question,
            tuple(scenarios),
            self.plots,
            self.reading,
            tracked(config, **resolved),
            show_block=self.show_block,
            table=self.table,
            typed=self.typed,
        )

    def experiment(self, config: Config) -> Experiment:
        """Return the experiment that a config asks for, with what was asked."""
        return replace(self.build(config), asked=changed(config))


@dataclass(frozen=True)
class OwnTable:
    """What an experiment's own table is about, instead of everything that is tracked.

    Attributes:
        columns: keys of the conditions and metrics that are shown, beside the scenario's name.
        compared: keys of the metrics that each run is compared with its baseline in.
    """

    columns: tuple[str, ...]
    compared: tuple[str, ...]
