"""Prove an answer: measure it afresh against the baseline.

The race selects its winner partly by luck, so that claims use only samples that are taken afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from llmtrack.decide.differences import Difference, build_difference, judge
from llmtrack.decide.significance import enough_repeats

LEAST, USUAL, MOST = 4, 5, 12
"""Samples of each side: 4 against 4 can be significant, 5 against 5 have more power."""


@dataclass(frozen=True)
class Sample:
    """The objective of a candidate, None if it failed; `disturbed` says whether the machine was, meanwhile."""

    value: float | None
    seconds: float
    disturbed: bool = False


def duel(
    names: tuple[str, str],
    measure: Callable[[str], Sample],
    seconds: float,
    least: int = USUAL,
    most: int = MOST,
) -> dict[str, list[Sample]]:
    """Measure two candidates afresh against each other; return the samples of each by round.

    The number of rounds is fixed from the remaining time and the first sample of each, before any comparison. The order
    alternates (A B B A), so that drift affects both. A disturbed round is repeated while the time allows. A failed sample
    ends the duel.

    Args:
        seconds: time limit.
        least: minimum samples of each, regardless of time.
        most: maximum samples of each.
    """
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    planned, spent, rounds = least, 0.0, 0
    while rounds < planned:
        spent_before = spent
        for name in names if rounds % 2 == 0 else names[::-1]:
            sample = measure(name)
            if sample.value is None:
                return samples
            samples[name].append(sample)
            spent += sample.seconds
        rounds += 1
        if rounds == 2:  # A first sample may include first-call overhead.
            more = min((seconds - spent) / max(spent / 2, 1e-9), most)
            planned = min(most, max(least, 2 + int(more)))
        disturbed = any(samples[name][-1].disturbed for name in names)
        if disturbed and planned < 2 * most and 2 * spent - spent_before <= seconds:
            planned += 1
    return samples


def valid_rounds(samples: Mapping[str, Sequence[Sample]], least: int) -> list[int]:
    """Return the rounds of a duel that count: those without a disturbance, or all if these are fewer than `least`."""
    rounds = [*zip(*samples.values(), strict=False)]
    calm = [number for number, both in enumerate(rounds) if not any(sample.disturbed for sample in both)]
    return calm if len(calm) >= least else [*range(len(rounds))]


@dataclass
class Proofs:
    """Fresh comparisons of candidates with the baseline in the objective; each is corrected for their number."""

    objective: str
    baseline: str
    _samples: dict[str, dict[str, list[Sample]]] = field(init=False, default_factory=dict)
    _claims: dict[str, Difference | None] = field(init=False, default_factory=dict)

    def __contains__(self, name: str | None) -> bool:
        return name in self._samples

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[str]:
        return iter(self._samples)

    def add(self, name: str, samples: dict[str, list[Sample]]) -> None:
        """Add the result of a candidate's duel with the baseline."""
        self._samples[name] = samples
        self._claims.clear()  # corrected for one more

    def least(self) -> int:
        """Return the least samples of each side that can be significant in one more comparison."""
        return max(LEAST, enough_repeats(len(self) + 1))

    def rounds(self, name: str) -> list[int]:
        """Return the rounds that count of a candidate's comparison; empty without one."""
        return valid_rounds(self._samples[name], enough_repeats(len(self))) if name in self else []

    def samples(self, name: str) -> dict[str, list[float]]:
        """Return the samples that count of a candidate and of the baseline; empty without a comparison."""
        rounds = self.rounds(name)
        return {
            side: [samples[number].value or math.nan for number in rounds]
            for side, samples in self._samples.get(name, {}).items()
        }

    def claim(self, name: str) -> Difference | None:
        """Return a candidate's difference from the baseline, or None without samples."""
        if name not in self._claims:
            self._claims[name] = self._claim(name)
        return self._claims[name]

    def _claim(self, name: str) -> Difference | None:
        samples = self.samples(name)
        before, after = samples.get(self.baseline), samples.get(name)
        if not before or not after:
            return None
        measured = build_difference(self.objective, median(before), median(after), before, after)
        return judge(measured, among=len(self))

    def holds(self, name: str) -> bool:
        """Return whether a candidate is significantly better than the baseline."""
        claim = self.claim(name)
        return claim is not None and claim.verdict == "better"
