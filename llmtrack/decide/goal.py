"""What is asked of a search, what measures for it, and what that answers: plain data between `tuning` and whoever acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from llmtrack.decide.promise import Way, Work
from llmtrack.decide.racing import Rules
from llmtrack.decide.significance import Ratio

Ending = Literal["proven", "unproven", "none"]


@dataclass(frozen=True)
class Seen:
    """What measuring a candidate once gave.

    Attributes:
        values: its metrics; empty where it could not be measured.
        seconds: what that took, loading included.
        why: why it could not be measured.
        again: seconds that a further sample is expected to take; None: as long.
        late: what it was doing when its time was used up, such as `loading`; empty where that did not happen.
    """

    values: Mapping[str, float]
    seconds: float
    why: str = ""
    again: float | None = None
    late: str = ""


@dataclass(frozen=True)
class PartScore:
    """What scoring one part of the text gave.

    Attributes:
        nats: summed negative log-likelihood.
        tokens: predicted tokens; 0 where it could not be scored.
        seconds: what that took.
        why: why it could not be scored.
        late: whether its time was used up.
    """

    nats: float
    tokens: int
    seconds: float
    why: str = ""
    late: bool = False


@dataclass(frozen=True)
class SearchState:
    """How far a search is.

    Attributes:
        doing: what is done next, in words.
        spent: seconds.
        leader: name of the best candidate so far; empty: there is none.
        value: its objective.
        ratio: how many times as good as the baseline it is, where that is known.
        alive: candidates that may still win.
        samples: taken so far.
    """

    doing: str
    spent: float
    leader: str = ""
    value: float | None = None
    ratio: Ratio | None = None
    alive: int = 0
    samples: int = 0


class Measurer(Protocol):
    """What measures and scores."""

    def measure(self, name: str, seconds: float) -> Seen:
        """Measure a candidate once, within so many seconds."""
        ...

    def score(self, name: str, part: int, seconds: float) -> PartScore:
        """Score a part of the text by a candidate, within so many seconds."""
        ...

    def measure_afresh(self, name: str, seconds: float) -> Seen:
        """Measure a candidate once, loaded anew since the race."""
        ...

    def dropped(self, name: str) -> None:
        """Be told that a candidate is out."""
        ...

    def show(self, state: SearchState) -> None:
        """Be told how far the search is."""
        ...

    def ways(self, measured: Mapping[str, float]) -> Mapping[str, Way]:
        """Return what is known of each candidate beforehand, given the metrics of the baseline as far as it is measured."""
        ...


@dataclass(frozen=True)
class Goal:
    """What is asked.

    Attributes:
        names: candidates, the simplest first; the first is the baseline, the reference of quality, too.
        objective: metric to be best in.
        better: which direction of it is better.
        seconds: the time for all of it.
        most_perplexity: perplexity over the baseline's at most (1.01: 1 % more); None: any.
        parts: how many parts the text has.
        limits: metrics of which a candidate may have so much at most.
        rules: of the race.
        new_tokens: of each row.
        on_gpu: whether a GPU computes.
        start: seconds that a worker takes to start.
        ready: whether the next worker is started meanwhile.
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
    start: float = 5.0
    ready: bool = False

    @property
    def baseline(self) -> str:
        """The first."""
        return self.names[0]

    @property
    def work(self) -> Work:
        """What is measured."""
        return Work(self.objective, self.better == "higher", self.new_tokens, self.on_gpu)
