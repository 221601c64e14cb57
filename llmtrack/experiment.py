"""Experiments: a question, the scenarios that answer it, and how to plot and interpret the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from llmtrack.errors import ExtensionError
from llmtrack.host.entry_points import EXPERIMENT_POINTS, find_extension, naming_plugin, unusable
from llmtrack.host.formatting import type_name
from llmtrack.spec.options import non_defaults, tracked_settings
from llmtrack.spec.scenario import Scalar, Scenario
from llmtrack.tracked.frames import frame_of
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SeriesOf = Callable[[str, str], list[float]]
# Packages of the built-in experiments.
_BUILTIN = ("experiments", "llmtrack")
# `Experiment.typed` selects their argument type.
Plots = Callable[[Any, SeriesOf], Mapping[str, "Figure"]]
Reading = Callable[[Any], list[str]]
Config = TypeVar("Config")


def always() -> bool:
    """Return True."""
    return True


def as_it_is(config: Config) -> Config:
    """Return a config unchanged."""
    return config


def draw_nothing(runs: object, series: SeriesOf) -> Mapping[str, Figure]:
    """Draw no figures."""
    return {}


def say_nothing(runs: object) -> list[str]:
    """Return no interpretation beyond the table."""
    return []


@dataclass(frozen=True)
class Experiment:
    """A named list of scenarios with a question.

    Attributes:
        question: what it answers, in one sentence.
        scenarios: what to measure, including the baseline.
        plots: draw figures, by file stem, from the tracked runs and a function that reads a tracked series by run id
            and name.
        reading: interpret the tracked runs in 3 to 5 lines.
        settings: resolved settings, tracked with the study as `cfg.NAME`.
        show_block: print every metric of each run, not only the table.
        table: columns of its own table; None for all that is tracked.
        asked: non-default parameters as command-line text, to reproduce it.
        typed: whether `plots` and `reading` take `Runs`, as in this project, or a DataFrame, as `llmtrack.runs` returns
            it.
        follow: in a suite, build the experiment from the runs tracked before it; the scenario names must not change.
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
        with _naming_package(self.name, "plots", self.plots):
            figures = self.plots(runs if self.typed else frame_of(runs), series)
        return self._checked("plots", figures, Mapping, "a mapping of names to figures")

    def read(self, runs: Runs) -> list[str]:
        """Interpret tracked runs; see `reading`."""
        with _naming_package(self.name, "reading", self.reading):
            lines = self.reading(runs if self.typed else frame_of(runs))
        return self._checked("reading", lines, (list, tuple), "a list of lines")

    def _checked(self, function: str, value: Any, types: Any, expected: str) -> Any:
        if not isinstance(value, types):
            raise _wrong_value(self.name, function, value, expected)
        return value


@dataclass(frozen=True)
class Declaration(Generic[Config]):
    """An experiment as declared in its file; the command, MLproject, the suite, README's table and docs/commands.md
    derive from it.

    Attributes:
        name: name of the entry point and of the file.
        question: what it answers, in one sentence.
        config: parameters, a frozen dataclass (see `llmtrack.options`).
        build: make the experiment from a config, using `asking`.
        plots, reading, table, show_block, typed: see `Experiment`.
        position: order in the suite, grouping experiments that share a loaded model; None to leave it out.
        in_suite: derive the suite's config from one made of the suite's own parameters.
        quick: derive the quick suite's config from the suite's.
        first_look: whether the quick suite runs it unless asked by name.
        applies: whether the suite runs it on this installation unless asked by name.
        more: Markdown after the question in README.
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
        """Build the experiment that measures some scenarios; track `resolved` with the study, beside the config."""
        return Experiment(
            self.name,
            self.question,
            tuple(scenarios),
            self.plots,
            self.reading,
            tracked_settings(config, **resolved),
            show_block=self.show_block,
            table=self.table,
            typed=self.typed,
        )

    def experiment(self, config: Config) -> Experiment:
        """Build the experiment for a config, recording its non-default parameters."""
        with _naming_package(self.name, "build", self.build):
            built = self.build(config)
        if not isinstance(built, Experiment):
            raise _wrong_value(
                self.name, "build", built, "an Experiment, such as of DECLARED.asking(config, scenarios)"
            )
        for scenario in built.scenarios:
            if not isinstance(scenario, Scenario):
                raise _wrong_value(self.name, "build", scenario, "a Scenario", " among its scenarios")
        return replace(built, asked=non_defaults(config))


def _wrong_value(experiment: str, function: str, value: Any, expected: str, where: str = "") -> ExtensionError:
    return _unusable(experiment, f"{function} returned {type_name(value)}{where}, and not {expected}")


def _unusable(experiment: str, why: str) -> ExtensionError:
    point = find_extension(EXPERIMENT_POINTS, experiment)
    if point is not None:
        return unusable(point, why)
    return ExtensionError(f"experiment {experiment} cannot be used: {why}: fix or update its package")


def _naming_package(experiment: str, name: str, function: Callable[..., Any]) -> AbstractContextManager[None]:
    """Name the experiment in errors of its function; bugs of a built-in experiment keep their traceback."""
    if str(getattr(function, "__module__", "")).partition(".")[0] in _BUILTIN:
        return nullcontext()
    return naming_plugin(partial(_unusable, experiment), name)


@dataclass(frozen=True)
class OwnTable:
    """Columns of an experiment's own table.

    Attributes:
        columns: keys of the conditions and metrics to show, after the scenario's name.
        compared: keys of the metrics to compare with the baseline.
    """

    columns: tuple[str, ...]
    compared: tuple[str, ...]
