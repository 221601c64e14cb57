"""Goal, measurements and state of a search: plain data between `tuning` and the measurer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llmtrack.decide.predictor import Prior, Workload
from llmtrack.decide.race import Rules
from llmtrack.decide.significance import Ratio

Ending = Literal["proven", "unproven", "none"]


@dataclass(frozen=True)
class Trial:
    """Result of measuring a candidate once.

    Attributes:
        values: its metrics; empty if it failed.
        seconds: duration, including loading.
        repeat_s: expected seconds of a further sample; None for the same duration.
        timed_out_in: phase in which it timed out, such as `loading`, or empty.
        disturbed: whether other programs disturbed the machine, or the calls varied or drifted.
    """

    values: Mapping[str, float]
    seconds: float
    failure: str = ""
    repeat_s: float | None = None
    timed_out_in: str = ""
    disturbed: bool = False


@dataclass(frozen=True)
class PartScore:
    """Score of one part of the text.

    Attributes:
        nats: summed negative log-likelihood.
        tokens: predicted tokens; 0 if it failed.
    """

    nats: float
    tokens: int
    seconds: float
    failure: str = ""
    timed_out: bool = False


@dataclass(frozen=True)
class SearchState:
    """Progress of a search.

    Attributes:
        action: the next one.
        spent: elapsed seconds.
        leader: best candidate so far, or empty.
        value: its objective.
        ratio: of the leader to the baseline, if known.
        alive: number of candidates that may still win.
        samples: number taken so far.
    """

    action: str
    spent: float
    leader: str = ""
    value: float | None = None
    ratio: Ratio | None = None
    alive: int = 0
    samples: int = 0


class Measurer(Protocol):
    """Measures and scores candidates."""

    def measure(self, name: str, seconds: float) -> Trial:
        """Measure a candidate once, within a time limit."""

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        """Score a part of the text with a candidate, within a time limit."""

    def measure_afresh(self, name: str, proven: str, seconds: float) -> Trial:
        """Measure the candidate to be proven or the baseline once, reloaded for this proof."""

    def dropped(self, name: str) -> None:
        """Handle the elimination of a candidate."""

    def show(self, state: SearchState) -> None:
        """Show the progress."""

    def priors(self, measured: Mapping[str, float]) -> Mapping[str, Prior]:
        """Return prior knowledge of each candidate, given the baseline's metrics so far."""


@dataclass(frozen=True)
class Goal:
    """What to search for.

    Attributes:
        names: candidates, simplest first; the first is the baseline and the reference of quality.
        better: `higher` or `lower`.
        seconds: time budget.
        most_perplexity: maximum perplexity relative to the baseline (1.01: 1 % more); None for any.
        parts: number of parts of the text.
        limits: maximum values of metrics.
        new_tokens: per row.
        start_s: seconds to start a worker.
        prestarted: whether the next worker is started in advance.
    """

    names: Sequence[str]
    objective: str
    better: str
    seconds: float
    most_perplexity: float | None = 1.01
    parts: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)
    new_tokens: int = 32
    on_gpu: bool = False
    start_s: float = 5.0
    prestarted: bool = False

    @property
    def baseline(self) -> str:
        """The first candidate."""
        return self.names[0]

    @property
    def work(self) -> Workload:
        """What is measured and optimized."""
        return Workload(self.objective, self.better == "higher", self.new_tokens, self.on_gpu)
