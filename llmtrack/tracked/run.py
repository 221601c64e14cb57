"""A tracked run: identity, settings, measurements and environment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

from llmtrack import metrics as schema
from llmtrack.spec.outcome import CUT_SHORT, REPLACED

STATUSES = FINISHED, FAILED, KILLED, RUNNING, SCHEDULED = ("FINISHED", "FAILED", "KILLED", "RUNNING", "SCHEDULED")

# Descriptions of unfinished states, for one and for several runs.
STATES = {
    FAILED: ("failed", "failed"),
    KILLED: ("was killed", "were killed"),
    RUNNING: ("is still running", "are still running"),
    SCHEDULED: ("has not begun", "have not begun"),
}

ENV = "env."
"""Prefix of environment facts among the names of values."""

# Params that identify a loaded model.
VARIANT = ("model_id", "backend", "device", "dtype", "quantization")
# Digests that identify the measured model: a name or folder may hold another one by now.
MODEL_DIGESTS = ("weights_digest", "config_digest", "tokenizer_digest")
# Values that must agree for runs of the same loaded model.
LOADED = (*VARIANT, *(ENV + name for name in MODEL_DIGESTS))
# The same for the reference of a comparison.
REFERENCE_DIGESTS = tuple(schema.REFERENCE_TAG_PREFIX + name for name in MODEL_DIGESTS)


@dataclass(frozen=True)
class Spread:
    """Spread of a metric: number of repeats, and 95 % interval of the median."""

    n: int
    low: float
    high: float


@dataclass(frozen=True)
class NoiseFloor:
    """Difference in a metric of two runs of equal settings.

    Attributes:
        share: by which the larger value exceeds the smaller (0.16: 16 %).
        names: of both runs, each with its experiment.
    """

    share: float
    names: tuple[str, str]
    values: tuple[float, float]


@dataclass(frozen=True)
class Family:
    """Number of scenarios in a run's study: of the same work, and in total.

    Attributes:
        proofs: comparisons remeasured after the search of a tuned study, if this run is one side of one.
    """

    of_work: int = 1
    of_study: int = 1
    proofs: int = 0


class MetricValues(dict[str, float]):
    """Metrics by name; missing ones are NaN."""

    def __missing__(self, name: str) -> float:
        return math.nan


@dataclass(frozen=True, eq=False)
class Run:
    """A tracked run; equal only to itself. Missing texts are empty, and missing values are absent from the mappings.

    `metrics/` describes the tags that its texts come from.

    Attributes:
        status: one of `STATUSES`.
        kind: `scenario` or `study`; empty if not from llmtrack.
        outcome: `finished`, `failed`, `killed` or `same_as`.
        reason: why it failed, was killed or was not measured.
        same_as: the scenario that it is equal to.
        baseline: whether it is the baseline of its study; None if not tracked.
        position: place of its scenario in the study, from 0; None if not tracked.
        asked: JSON of the parameters that reproduce its experiment.
        params: conditions by name; None for an explicit none.
        metrics: by name, including spreads; NaN if not tracked.
        environment: facts of the machine and versions.
        samples: raw samples by metric, once read; see `decide.verdicts.with_samples`.
        floors: noise floor by metric; None if not looked up.
        family: size of its study; None if not looked up.
    """

    run_id: str
    run_name: str = ""
    status: str = ""
    kind: str = ""
    experiment: str = ""
    study_id: str = ""
    mlflow_experiment: str = ""
    outcome: str = ""
    failure: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    same_as: str = ""
    baseline: bool | None = None
    position: int | None = None
    start_time: datetime | None = None
    end_time: datetime | None = None
    suite_id: str = ""
    question: str = ""
    asked: str = ""
    scenario_id: str = ""
    workload_id: str = ""
    environment_id: str = ""
    model_uri: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=MetricValues)
    environment: Mapping[str, str] = field(default_factory=dict)
    samples: Mapping[str, Sequence[float]] = field(default_factory=dict)
    floors: Mapping[str, NoiseFloor] | None = None
    family: Family | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, MetricValues):
            object.__setattr__(self, "metrics", MetricValues(self.metrics))

    @property
    def scenario(self) -> str:
        """Its scenario's name."""
        return str(self.params.get("scenario", ""))

    @property
    def name(self) -> str:
        """Display name: scenario, else run name, else id."""
        return _on_one_line(self.scenario) or _on_one_line(self.run_name) or self.run_id

    @property
    def place(self) -> tuple[str, str]:
        """Suite (or study) and environment."""
        return self.suite_id or self.study_id, self.environment_id

    @property
    def is_finished(self) -> bool:
        """Whether it finished."""
        return self.status == FINISHED

    @property
    def is_same_as(self) -> bool:
        """Whether it was skipped because it equals another scenario of its study."""
        return self.outcome == "same_as"

    @property
    def is_replaced(self) -> bool:
        """Whether it was disturbed and its scenario remeasured, so that it does not count."""
        return any(REPLACED in line for line in self.warnings)

    @property
    def is_cut_short(self) -> bool:
        """Whether it was interrupted before all of its rounds."""
        return any(line.endswith(CUT_SHORT) for line in self.warnings)

    @property
    def state(self) -> str:
        """Description of an unfinished state: `failed: out of memory`, `is still running`."""
        words = STATES.get(self.status, (f"is {self.status or 'of no known status'}",))[0]
        reason = _on_one_line(self.reason)
        if not reason and self.status == FAILED:
            reason = "no reason was tracked"
        return f"{words}: {reason}" if reason else words

    def get(self, name: str) -> Any:
        """Return any value by its column name, or None."""
        for values in (self.params, self.metrics):
            if name in values:
                return values[name]
        if name.startswith(ENV):
            return self.environment.get(name.removeprefix(ENV))
        if name == "warnings":
            return "\n".join(self.warnings) or None
        value = getattr(self, name) if name in IDENTITY else None
        return None if value == "" else value

    def has(self, name: str) -> bool:
        """Return whether a value was tracked."""
        return self.get(name) is not None

    def has_number(self, name: str) -> bool:
        """Return whether a value was tracked and is not infinite."""
        return self.get(name) not in (None, math.inf, -math.inf)

    def text(self, name: str) -> str:
        """Return a value as one line of text; empty if missing."""
        value = self.get(name)
        return "" if value is None else _on_one_line(str(value))

    def number(self, name: str) -> float | None:
        """Return a value as a number, or None if missing or infinite, which cannot be compared."""
        value = self.get(name)
        number = None if value is None else float(value)
        return number if number is not None and math.isfinite(number) else None

    def spread(self, metric: str) -> Spread | None:
        """Return the tracked spread of a metric, or None."""
        n, low, high = (self.number(schema.spread_key(metric, stat)) for stat in ("n", "ci_low", "ci_high"))
        return None if n is None or low is None or high is None else Spread(int(n), low, high)

    def agrees(self, other: Run, *names: str) -> bool:
        """Return whether both runs have equal values; missing on both sides counts as equal."""
        return all(self.get(name) == other.get(name) for name in names)

    def as_scenario(self, scenario: str, **changes: Any) -> Run:
        """Return the run under another scenario's name, with other changes of its fields."""
        return replace(self, params={**self.params, "scenario": scenario}, **changes)


_GROUPS = ("params", "metrics", "environment", "samples", "floors", "family")
IDENTITY = tuple(field.name for field in fields(Run) if field.name not in _GROUPS)
"""Names of the identity values (not params, metrics or environment), in column order."""


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
