"""The way from candidates to the best one: a race of speed, bounds that must be kept, and a fresh claim at the end.

It knows nothing of engines or MLflow: whatever is done, a `Measurer` does, and everything follows from what it answers. So one that
was killed goes on when the same answers are given again.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from llmtrack.decide.bounded import ComparedPart, judge_bound, perplexity_ratio
from llmtrack.decide.differences import Difference, difference, judge
from llmtrack.decide.racing import Race, Rules, Sample, duel, run_race
from llmtrack.decide.significance import Ratio
from llmtrack.metrics import metric

# A candidate that was never measured may take so many times its equal share of the time that is left, and this share of it at
# most: a conversion that takes longer is given up, so that the others get their turn.
_FIRST_TIMES = 4
_FIRST_SHARE = 0.5
# What is expected of the time at the end is expected with so much room.
_ROOM = 1.1
# What is kept for the end is this share of all the time at most.
_MOST_RESERVED = 0.4
# A bound that a single sample is so far beyond is broken.
_FAR = 1.5


@dataclass(frozen=True)
class Seen:
    """What measuring a candidate once gave.

    Attributes:
        values: its metrics; empty where it could not be measured.
        seconds: what that took, loading included.
        why: why it could not be measured.
        again: seconds that a further one is expected to take; None: as long.
    """

    values: Mapping[str, float]
    seconds: float
    why: str = ""
    again: float | None = None


@dataclass(frozen=True)
class PartScore:
    """What scoring one part of the text gave.

    Attributes:
        nats: summed negative log-likelihood.
        tokens: predicted tokens; 0 where it could not be scored.
        seconds: what that took.
        why: why it could not be scored.
    """

    nats: float
    tokens: int
    seconds: float
    why: str = ""


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


@dataclass(frozen=True)
class Goal:
    """What is asked.

    Attributes:
        names: candidates, the simplest first; the first is the baseline, the reference of quality, too.
        objective: metric to be best in.
        better: which direction of it is better.
        seconds: the time for all of it.
        model_of: by candidate, what its quality depends on: those that share it are scored once.
        most_perplexity: perplexity over the baseline's at most (1.01: 1 % more); None: any.
        parts: how many parts the text has.
        limits: metrics of which a candidate may have so much at most.
        rules: of the race.
    """

    names: Sequence[str]
    objective: str
    better: str
    seconds: float
    model_of: Mapping[str, str]
    most_perplexity: float | None = 1.01
    parts: int = 1
    limits: Mapping[str, float] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)

    @property
    def baseline(self) -> str:
        """The first."""
        return self.names[0]


@dataclass
class Tuning:
    """Tune, and keep what was seen.

    Args:
        task: what is asked.
        hands: what measures and scores.
    """

    task: Goal
    hands: Measurer
    race: Race = field(init=False)
    quality: dict[str, Ratio] = field(init=False, default_factory=dict)
    fresh: dict[str, list[float]] = field(init=False, default_factory=dict)
    winner: str | None = field(init=False, default=None)
    equal: list[str] = field(init=False, default_factory=list)
    claim: Difference | None = field(init=False, default=None)
    spent: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        task = self.task
        self.race = Race(task.names, task.better, task.rules)
        self._over: dict[str, dict[str, list[float]]] = {name: {} for name in task.names}
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._scores: dict[str, list[PartScore]] = {}
        self._told: set[str] = set()
        if task.most_perplexity is not None:
            for name in task.names:
                if self._model(name) != self._model(task.baseline):
                    self.race.hold(name)

    def run(self) -> None:
        """Race, and measure the winner afresh against the baseline; the outcome stands in the attributes."""
        task = self.task
        run_race(self.race, self._measure, task.seconds, self._after_round, self._reserve)
        self._score_open(self._left() - self._reserve())
        for name in sorted(self.race.waiting):
            self.race.drop(name, "its quality was not known to keep to the bound when the time was used up")
        self._tell_dropped()
        self.winner = self.race.choice()
        self.equal = self.race.equal()
        if self.winner is None or self.winner == task.baseline:
            return
        pair = (task.baseline, self.winner)
        # What has no noise needs no second look.
        if metric(task.objective).sureness != "exact" and self._claim_seconds(pair) <= self._left():
            self.fresh = duel(pair, self._afresh, self._left() / _ROOM)
        self.claim = self._claim(*pair)
        # One that is not told from the baseline is no win: the simpler of both is recommended.
        if self.claim is None or self.claim.verdict != "better":
            self.winner, self.equal = task.baseline, list(dict.fromkeys([task.baseline, *self.equal]))

    def _claim(self, baseline: str, winner: str) -> Difference | None:
        """Return how the winner differs from the baseline, by what was measured afresh alone."""
        samples = [
            self.fresh.get(name, []) if self.fresh else self.race.samples[name] for name in (baseline, winner)
        ]
        if not all(samples):
            return None
        before, after = map(median, samples)
        (found,) = judge(
            [difference(self.task.objective, before, after, *(samples if self.fresh else ((), ())))]
        )
        return found

    def _model(self, name: str) -> str:
        return self.task.model_of.get(name, name)

    def _left(self) -> float:
        return self.task.seconds - self.spent

    def _reserve(self) -> float:
        """Return the seconds that the fresh measurements at the end will take."""
        leader = self.race.leader()
        if leader in (None, self.task.baseline):
            leader = min(
                (name for name in self.race.alive if name in self._last),
                key=self._last.__getitem__,
                default=None,
            )
        names = {name for name in (leader, self.task.baseline) if name in self._last}
        # Where all of it would not do, what was not measured yet goes before a claim that could not be made anyway.
        return min(_ROOM * self._claim_seconds(names), _MOST_RESERVED * self.task.seconds)

    def _claim_seconds(self, names: Collection[str]) -> float:
        """Return the seconds that measuring some candidates afresh takes at least."""
        usual = median(self._first.values()) if self._first else 0.0
        return math.fsum(min(self._first[name], usual) + 5 * self._last[name] for name in names)

    def _measure(self, name: str) -> Sample:
        room = self._left() - self._reserve()
        if name not in self._last:
            unknown = sum(each not in self._last for each in self.race.alive)
            room *= min(_FIRST_TIMES / unknown, _FIRST_SHARE)
        seen = self.hands.measure(name, max(room, 0.0))
        self._took(name, seen)
        why, value = seen.why, seen.values.get(self.task.objective)
        if not why and value is None:
            why = f"no {self.task.objective} can be measured here"
            if name == self.task.baseline:  # Nor can it be of any other way.
                for other in self.task.names:
                    self.race.drop(other, why)
        why = why or self._beyond(name, seen.values)
        if why:
            value = None
        self.spent += seen.seconds
        return Sample(value, seen.seconds, why, self._last[name])

    def _afresh(self, name: str) -> Sample:
        seen = self.hands.measure_afresh(name, max(self._left(), self._last.get(name, 0.0)))
        self.spent += seen.seconds
        return Sample(seen.values.get(self.task.objective), seen.seconds, seen.why)

    def _took(self, name: str, seen: Seen) -> None:
        self._first.setdefault(name, seen.seconds)
        self._last[name] = seen.seconds if seen.again is None else min(seen.seconds, seen.again)

    def _beyond(self, name: str, values: Mapping[str, float]) -> str:
        """Say which limit a candidate does not keep to; empty if it keeps to all as far as can be told."""
        for key, most in self.task.limits.items():
            if key not in values:
                return f"no {key} could be measured, of which it may have {most:,.4g} at most"
            seen = self._over[name].setdefault(key, [])
            seen.append(values[key])
            # The middle one of three, or all of two, or one that is far beyond.
            if (median(seen) > most and len(seen) > 2) or (
                min(seen) > most and (len(seen) > 1 or seen[0] > _FAR * most)
            ):
                return f"{key} {median(seen):,.4g} is over {most:,.4g}"
        return ""

    def _after_round(self) -> float:
        before = self.spent
        # After one round nobody knows yet who is hopeless, and need not be scored.
        if self.race.round > 1:
            self._score_open(self._left() - self._reserve())
        self._tell_dropped()
        return self.spent - before

    def _score_open(self, seconds: float) -> None:
        """Score the fastest of those whose quality is not known, and so on, until it is known of all that are still in."""
        until = self.spent + seconds
        while self.spent < until and (name := self._fastest_waiting()) is not None:
            model = self._model(name)
            done = self._scores.setdefault(model, [])
            if len(done) >= self.task.parts or not (
                self._score(self.task.baseline, len(done), until) and self._score(name, len(done), until)
            ):
                why = next((each.why for each in reversed(done) if each.why), "")
                self._of_model(
                    model, f"its quality could not be scored: {why or 'the baseline could not be scored'}"
                )
                continue
            self._judge(name, model)

    def _fastest_waiting(self) -> str | None:
        waiting = [name for name in self.race.waiting if self.race.samples[name]]
        sign = 1 if self.task.better == "higher" else -1
        return max(waiting, key=lambda name: (sign * median(self.race.samples[name]), name), default=None)

    def _score(self, name: str, part: int, until: float) -> bool:
        done = self._scores.setdefault(self._model(name), [])
        if len(done) <= part:
            scored = self.hands.score(name, part, max(until - self.spent, 0.0))
            self.spent += scored.seconds
            done.append(scored)
        return done[part].tokens > 0

    def _judge(self, name: str, model: str) -> None:
        task = self.task
        assert task.most_perplexity is not None
        reference = self._scores[self._model(task.baseline)]
        parts = [
            ComparedPart(own.nats, other.nats, own.tokens)
            for own, other in zip(self._scores[model], reference, strict=False)
        ]
        tests = len(set(map(self._model, task.names))) - 1
        ratio = perplexity_ratio(parts, task.parts, looks=task.parts, tests=max(1, tests))
        self.quality[model] = ratio
        verdict = judge_bound(ratio, task.most_perplexity)
        if verdict == "kept":
            for each in [
                each for each in task.names if self._model(each) == model and each in self.race.waiting
            ]:
                self.race.admit(each)
        elif verdict == "broken":
            most = f"{task.most_perplexity - 1:+.3g}"
            interval = "" if len(parts) >= task.parts else f" ({_change(ratio.low)} to {_change(ratio.high)})"
            why = f"perplexity {_change(ratio.value)}{interval} is over {float(most):+.1%}"
            self._of_model(model, why)

    def _of_model(self, model: str, why: str) -> None:
        for each in self.task.names:
            if self._model(each) == model:
                self.race.drop(each, why)

    def _tell_dropped(self) -> None:
        for name in self.race.dropped:
            if name not in self._told:
                self._told.add(name)
                self.hands.dropped(name)


def _change(ratio: float) -> str:
    return f"{ratio - 1:+.2%}"
