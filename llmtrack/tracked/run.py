"""One tracked run: who it is, what was asked, what was measured, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from llmtrack import metrics as schema
from llmtrack.spec.outcome import CUT_SHORT, REPLACED

STATUSES = FINISHED, FAILED, KILLED, RUNNING, SCHEDULED = (
    "FINISHED",
    "FAILED",
    "KILLED",
    "RUNNING",
    "SCHEDULED",
)

# Status of a run that is not finished to what is said of it: one, several.
STATES = {
    FAILED: ("failed", "failed"),
    KILLED: ("was killed", "were killed"),
    RUNNING: ("is still running", "are still running"),
    SCHEDULED: ("has not begun", "have not begun"),
}

ENV = "env."
"""Prefix of a fact of the environment among the names of values."""

# A loaded model, as params tell it.
VARIANT = ("model_id", "backend", "device", "dtype", "quantization")
# What tells of a run which model it measured: a name or a folder can hold another one by now.
MODEL_DIGESTS = ("weights_digest", "config_digest", "tokenizer_digest")
# What makes two runs runs of the same loaded model.
LOADED = (*VARIANT, *(ENV + name for name in MODEL_DIGESTS))
# The same of the model that a run was compared with.
REFERENCE_DIGESTS = tuple(schema.REFERENCE_TAG_PREFIX + name for name in MODEL_DIGESTS)


@dataclass(frozen=True)
class Spread:
    """What is tracked of a metric's repeats: how many, and the 95 % interval of their median."""

    n: int
    low: float
    high: float


@dataclass(frozen=True)
class Floor:
    """How far two runs of equal settings differ in a metric.

    Attributes:
        share: by which the larger value exceeds the smaller (0.16: 16 %).
        names: what both are called, each with its experiment.
        values: of both.
    """

    share: float
    names: tuple[str, str]
    values: tuple[float, float]


@dataclass(frozen=True)
class Family:
    """How many scenarios the study of a run has: of the same work, and in all."""

    of_work: int = 1
    of_study: int = 1


class Figures(dict[str, float]):
    """Figures by name; one that was not tracked is NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True, eq=False)
class Run:
    """A tracked run; equal only to itself. A text that was not tracked is empty, and a value that was not is in no mapping.

    Attributes:
        run_id: its MLflow id.
        run_name: its name in MLflow.
        status: one of `STATUSES`.
        kind: `scenario` or `study`; empty: not llmtrack's.
        experiment: llmtrack's experiment.
        study_id: the study that it is of.
        suite_id: the suite that it is of.
        mlflow_experiment: MLflow's experiment.
        outcome: `finished`, `failed`, `killed` or `same_as`.
        failure: kind of the failure.
        reason: why it failed, was killed or was not measured.
        same_as: the scenario that it is the same as.
        baseline: whether its study compares others with it; None: not tracked.
        question: what its study asks.
        asked: JSON of the parameters by which its experiment is asked for again.
        scenario_id: digest of what was asked.
        workload_id: digest of the work.
        environment_id: digest of the machine and versions.
        model_uri: `models:/ID` of MLflow's logged model of the way to run that was measured.
        start_time: when it began.
        end_time: when it ended.
        warnings: findings in words about how it was measured.
        params: conditions by name; None where none was asked for.
        metrics: figures by name, those of the spread among them; NaN: not tracked.
        environment: facts of the machine and versions by name.
        samples: raw samples by metric, once read (see `decide.verdicts.with_samples`).
        floors: how far equal settings differed where it was measured, by metric; None: not looked up.
        family: the size of its study; None: not looked up.
    """

    run_id: str
    run_name: str = ""
    status: str = ""
    kind: str = ""
    experiment: str = ""
    study_id: str = ""
    suite_id: str = ""
    mlflow_experiment: str = ""
    outcome: str = ""
    failure: str = ""
    reason: str = ""
    same_as: str = ""
    baseline: bool | None = None
    question: str = ""
    asked: str = ""
    scenario_id: str = ""
    workload_id: str = ""
    environment_id: str = ""
    model_uri: str = ""
    start_time: datetime | None = None
    end_time: datetime | None = None
    warnings: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=Figures)
    environment: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    floors: Mapping[str, Floor] | None = None
    family: Family | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Figures):
            object.__setattr__(self, "metrics", Figures(self.metrics))

    @property
    def scenario(self) -> str:
        """Name of its scenario."""
        return str(self.params.get("scenario", ""))

    @property
    def name(self) -> str:
        """What it is called: its scenario or, if it has none, its own name or id."""
        return next(filter(None, (_on_one_line(each) for each in (self.scenario, self.run_name))), self.run_id)

    @property
    def place(self) -> tuple[str, str]:
        """Where it was measured: its suite (or study) and environment."""
        return self.suite_id or self.study_id, self.environment_id

    @property
    def is_finished(self) -> bool:
        """Whether it came to its end."""
        return self.status == FINISHED

    @property
    def is_same_as(self) -> bool:
        """Whether it was not measured, since it is the same as another scenario of its study."""
        return self.outcome == "same_as"

    @property
    def is_replaced(self) -> bool:
        """Whether it was disturbed so that its scenario is measured once more: it counts for nothing beside that."""
        return any(REPLACED in line for line in self.warnings)

    @property
    def is_cut_short(self) -> bool:
        """Whether it was interrupted before all of its rounds were made."""
        return any(line.endswith(CUT_SHORT) for line in self.warnings)

    @property
    def state(self) -> str:
        """How it stands if it is not finished, in words: `failed: out of memory`, `is still running`."""
        words = STATES.get(self.status, (f"is {self.status or 'of no known status'}",))[0]
        reason = _on_one_line(self.reason)
        if not reason and self.status == FAILED:
            reason = "no reason was tracked"
        return f"{words}: {reason}" if reason else words

    def get(self, name: str) -> Any:
        """Return any value by its column's name, or None."""
        for values in (self.params, self.metrics):
            if name in values:
                return values[name]
        if name.startswith(ENV):
            return self.environment.get(name.removeprefix(ENV))
        if name == "warnings":
            return "\n".join(self.warnings) or None
        found = getattr(self, name) if name in IDENTITY else None
        return None if found == "" else found

    def has(self, name: str) -> bool:
        """Return whether a value was tracked."""
        return self.get(name) is not None

    def has_figure(self, name: str) -> bool:
        """Return whether a value was tracked that is not infinite."""
        return self.get(name) not in (None, math.inf, -math.inf)

    def text(self, name: str) -> str:
        """Return a value as text on one line; empty if there is none."""
        found = self.get(name)
        return "" if found is None else _on_one_line(str(found))

    def number(self, name: str) -> float | None:
        """Return a value as a number, or None if there is none or it is infinite: no figure can be set against infinity."""
        found = self.get(name)
        number = None if found is None else float(found)
        return number if number is not None and math.isfinite(number) else None

    def spread(self, metric: str) -> Spread | None:
        """Return what is tracked of how a metric's repeats lie, or None."""
        n, low, high = (self.number(schema.spread_key(metric, stat)) for stat in ("n", "ci_low", "ci_high"))
        return None if n is None or low is None or high is None else Spread(int(n), low, high)

    def agrees(self, other: Run, *names: str) -> bool:
        """Return whether both have the same of some values; to have none on both sides is to agree."""
        return all(self.get(name) == other.get(name) for name in names)

    def standing_for(self, scenario: str, **changes: Any) -> Run:
        """Return it under another scenario's name, with other changes."""
        return replace(self, params={**self.params, "scenario": scenario}, **changes)


IDENTITY = (
    "run_id",
    "run_name",
    "status",
    "kind",
    "experiment",
    "study_id",
    "mlflow_experiment",
    "outcome",
    "failure",
    "reason",
    "warnings",
    "same_as",
    "baseline",
    "start_time",
    "end_time",
    "suite_id",
    "question",
    "asked",
    "scenario_id",
    "workload_id",
    "environment_id",
    "model_uri",
)
"""Names of the values that are neither params, metrics nor facts of the environment, in the order of columns."""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
