"""A race: which of many candidates is the best, in as few measurements as the answer needs; knows nothing of engines or MLflow.

Candidates are measured in rounds, one sample each. Whatever drifts from round to round falls on all of them, so that two are
compared by the ratios of their samples of one round. One that the leader beats beyond doubt is dropped, and what is left of
the time goes to those among which the answer is still open.

"Beyond doubt" is an interval of the ratio that holds for all candidates and all looks together: the best one is dropped with
a chance of at most `Rules.alpha`. The noise is that of all candidates pooled, or a pair's own where that is larger, so that
few samples of each tell something already.

Source: the elimination is that of E. Even-Dar, S. Mannor, Y. Mansour, Journal of Machine Learning Research 7 (2006); the
chance is spent over the looks as in H. Robbins, Annals of Mathematical Statistics 41 (1970): 1 / (n (n + 1)) at look n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from llmtrack.decide.significance import ALPHA, Ratio


@dataclass(frozen=True)
class Rules:
    """What a race goes by.

    Attributes:
        margin: two candidates that differ by less are as good as equal, as a share (0.05: 5 %).
        alpha: chance that the best one is dropped.
        most_rounds: it ends after so many.
        far: how many times worse a candidate must be to be dropped on a single sample.
    """

    margin: float = 0.05
    alpha: float = ALPHA
    most_rounds: int = 30
    far: float = 1.5


@dataclass(frozen=True)
class Dropped:
    """Why a candidate is out.

    Attributes:
        why: in words.
        ratio: how many times as good the one was that beat it, with the interval by which it was dropped; None where it
            was not beaten.
        by: who beat it; empty where nobody did.
    """

    why: str
    ratio: Ratio | None = None
    by: str = ""


@dataclass
class Race:
    """A race that asks which candidate to measure next, and is told what came of it.

    The same answers in the same order make the same race: one that was killed goes on once it is told them again.

    Args:
        names: candidates, the simplest first.
        better: whether `higher` or `lower` samples are better.
        rules: what it goes by.
    """

    names: Sequence[str]
    better: str = "higher"
    rules: Rules = Rules()
    samples: Mapping[str, list[float]] = field(init=False)
    _logs: Mapping[str, list[float]] = field(init=False)
    dropped: dict[str, Dropped] = field(init=False, default_factory=dict)
    waiting: set[str] = field(init=False, default_factory=set)
    _order: list[str] = field(init=False)
    _round: int = field(init=False, default=1)
    _known_noise: tuple[float, float] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.samples, self._logs = ({name: [] for name in self.names} for _ in range(2))
        self._order = list(self.names)

    @property
    def alive(self) -> list[str]:
        """Those that are still in, the simplest first."""
        return [name for name in self.names if name not in self.dropped]

    @property
    def round(self) -> int:
        """The number of the round that goes on, from 1."""
        return self._round

    def next(self) -> str | None:
        """Return which candidate to measure next; None where a round has ended: see `begin_round`."""
        return next((name for name in self._order if self._lacks(name)), None)

    def begin_round(self) -> bool:
        """Begin the next round, and return whether there is one: not where the answer is there."""
        self._eliminate(self.alive)
        if self.decided() or self._round >= self.rules.most_rounds:
            return False
        self._round += 1
        # There and back: what drifts within a round falls on either side in turn. The fastest first where that is new,
        # since those that are far behind need no second sample then.
        alive = sorted(
            (name for name in self.alive if self.samples[name]),
            key=lambda name: -float(np.mean(self._of(name))),
        )
        self._order = alive if self._round % 2 == 0 else alive[::-1]
        return True

    def tell(self, name: str, value: float) -> None:
        """Tell the sample of a candidate, and drop those that are beaten beyond doubt.

        Raises:
            ValueError: it is not a number above 0.
        """
        if not 0 < value < math.inf:
            raise ValueError(f"a ratio needs samples above 0, and {name} has {value}")
        self.samples[name].append(value)
        self._logs[name].append(math.log(value) * (1 if self.better == "higher" else -1))
        self._known_noise = None
        self._eliminate(self.alive if name == self.leader() else (name,))

    def drop(self, name: str, why: str) -> None:
        """Take a candidate out for another reason than its samples."""
        self.waiting.discard(name)
        self.dropped.setdefault(name, Dropped(why))

    def hold(self, name: str) -> None:
        """Let a candidate drop no other one until it is admitted: it is not known yet whether it may win."""
        self.waiting.add(name)

    def admit(self, name: str) -> None:
        """Let a candidate that was held drop others."""
        self.waiting.discard(name)
        self._eliminate(self.alive)

    def _eliminate(self, names: Iterable[str]) -> None:
        """Drop those of some candidates that the leader beats beyond doubt."""
        leader = self.leader()
        if leader is None:
            return
        for name in names:
            if name == leader or name in self.dropped or not self.samples[name]:
                continue
            ratio = self.ratio(leader, name)
            if (
                ratio is None
                or ratio.low <= 1
                or (len(self.samples[name]) == 1 and ratio.value < self.rules.far)
            ):
                continue
            why = f"{leader} is {ratio.value:.2f}x as good ({ratio.low:.2f} to {ratio.high:.2f})"
            self.dropped[name] = Dropped(why, ratio, leader)
            self.waiting.discard(name)

    def leader(self) -> str | None:
        """Return the best of those that may win, by the rounds that all of them have."""
        able = [name for name in self.alive if name not in self.waiting and self.samples[name]]
        if not able:
            return None
        rounds = min(len(self.samples[name]) for name in able)
        return max(able, key=lambda name: math.fsum(self._logs[name][:rounds]))

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Return how many times as good one candidate is as another, with the interval that holds for all looks.

        None where the noise is not known yet.
        """
        both = min(len(self.samples[one]), len(self.samples[other]))
        if self._known_noise is None:
            self._known_noise = self._noise()
        variance, freedom = self._known_noise
        if not both or not freedom:
            return None
        differences = self._of(one)[:both] - self._of(other)[:both]
        variance *= 2
        if both > 1:
            variance = max(variance, float(differences.var(ddof=1)))
        chance = self.rules.alpha / max(1, len(self.names) - 1) / (both * (both + 1))
        half = quantile(chance, freedom) * math.sqrt(variance / both)
        mean = float(differences.mean())
        return around(mean, half)

    def decided(self) -> bool:
        """Return whether nobody who is left can be better than the leader by more than the margin."""
        leader = self.leader()
        return leader is not None and all(name == leader or self._within(name, leader) for name in self.alive)

    def equal(self) -> list[str]:
        """Return those that were not told from the leader, itself among them, the simplest first."""
        return [name for name in self.alive if name not in self.waiting and self.samples[name]]

    def choice(self) -> str | None:
        """Return the simplest of those that are surely as good as the leader but for the margin; None: there is none."""
        leader = self.leader()
        if leader is None:
            return None
        return next(name for name in self.equal() if name == leader or self._within(leader, name))

    def _within(self, one: str, other: str) -> bool:
        """Whether the one is surely not better than the other by more than the margin."""
        ratio = self.ratio(one, other)
        return ratio is not None and ratio.high < 1 + self.rules.margin

    def _lacks(self, name: str) -> bool:
        return name not in self.dropped and len(self.samples[name]) < self._round

    def _of(self, name: str) -> np.ndarray:
        """The logarithms of a candidate's samples; more is better."""
        return np.array(self._logs[name])

    def _noise(self) -> tuple[float, float]:
        """Return the variance of a sample's logarithm, and how many degrees of freedom it is known by.

        It is taken from how candidates change from one round to the next, beyond what they change alike. Each sample but a
        candidate's first and last is in two changes, which makes them worth a third less.
        """
        squares, freedom = 0.0, 0.0
        rows = [self._of(name) for name in self.names if len(self.samples[name]) > 1]
        for position in range(1, max(map(len, rows), default=0)):
            changes = np.array([row[position] - row[position - 1] for row in rows if len(row) > position])
            if len(changes) > 1:
                squares += float(((changes - changes.mean()) ** 2).sum())
                freedom += len(changes) - 1
        if not freedom:
            return 0.0, 0.0
        return squares / freedom / 2, max(1.0, freedom * 2 / 3)


@dataclass(frozen=True)
class Sample:
    """What measuring a candidate once gave.

    Attributes:
        value: its sample, or None where it could not be measured.
        seconds: what that took.
        why: why it could not be measured, or may not win.
        again: seconds that a further one is expected to take; None: as long.
    """

    value: float | None
    seconds: float
    why: str = ""
    again: float | None = None


def run_race(
    race: Race,
    measure: Callable[[str], Sample],
    seconds: float = math.inf,
    after_round: Callable[[], float] = lambda: 0.0,
    reserve: Callable[[], float] = lambda: 0.0,
) -> float:
    """Run a race until it is decided, or the time is used up, and return how much time it took.

    No sample is begun that would end beyond the time if it took as long as the candidate's last one; of one that was not
    measured yet, as long as the middle one of the others' first: one whose conversion is slow must not speak for those after it.

    Args:
        race: the race.
        measure: measures a candidate once.
        seconds: the time for it.
        after_round: looks at what a round gave, and returns how long that took.
        reserve: how much of the time is needed for what comes after the race.
    """
    spent, firsts, again = 0.0, list[float](), dict[str, float]()
    while True:
        while (name := race.next()) is not None:
            expected = again[name] if name in again else median(firsts or [0.0])
            if again and spent + expected + reserve() > seconds:
                for left in race.alive:
                    if not race.samples[left]:
                        race.drop(left, "not measured: the time was used up before")
                return spent
            sample = measure(name)
            spent += sample.seconds
            if name not in again:
                firsts.append(sample.seconds)
            again[name] = sample.seconds if sample.again is None else sample.again
            if sample.value is not None:
                race.tell(name, sample.value)
            if sample.why:
                race.drop(name, sample.why)
        spent += after_round()
        if not race.begin_round():
            return spent


def duel(
    names: tuple[str, str],
    measure: Callable[[str], Sample],
    seconds: float,
    least: int = 5,
    most: int = 12,
) -> dict[str, list[float]]:
    """Measure two candidates afresh against each other, and return the samples of each.

    A claim is made from these alone: the race has picked its winner for being lucky, too. How often is fixed by the time that
    is left and the first sample of each, before anything is compared. There and back (A B B A): what drifts falls on both.

    Args:
        names: the two.
        measure: measures a candidate once; one that cannot be measured ends it.
        seconds: the time for it.
        least: samples of each at least, whatever time they take; 5 against 5 tell (see `differences.too_few`).
        most: samples of each at most.
    """
    found: dict[str, list[float]] = {name: [] for name in names}
    rounds, cost = least, 0.0
    done = 0
    while done < rounds:
        for name in names if done % 2 == 0 else names[::-1]:
            sample = measure(name)
            if sample.value is None:
                return found
            found[name].append(sample.value)
            cost += sample.seconds if done < 2 else 0.0
        done += 1
        if done == 2:  # A first sample may hold what only a first call costs.
            more = min((seconds - cost) / max(cost / 2, 1e-9), most)
            rounds = min(most, max(least, 2 + int(more)))
    return found


def quantile(chance: float, freedom: float) -> float:
    """Return how many standard errors a mean is beyond its expectation with such a chance (one-sided, Student's t)."""
    # What `scipy.stats` says, too, whose import takes a second.
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, chance))


def around(mean: float, half: float = 0.0) -> Ratio:
    """Return the ratio whose logarithm lies around a mean, within so much of it."""
    value, low, high = (math.exp(min(each, 700.0)) for each in (mean, mean - half, mean + half))
    return Ratio(value, low, high)
