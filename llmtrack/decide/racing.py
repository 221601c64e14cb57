"""Find the best of many candidates by racing on blocks of samples; independent of engines and MLflow.

Samples of one block are taken within seconds, so that drift affects all of them alike. The logarithm of a sample is
modelled as candidate + block + noise and fitted by least squares, so that candidates are compared within blocks, also
indirectly through a third one.

A candidate is dropped when the interval of its ratio to the leader excludes 1. The interval is corrected for the number
of candidates and of looks, so that the best one is dropped with probability at most `Rules.alpha`.

Sources: two-way layout with unequal numbers, H. Scheffe, The Analysis of Variance (1959), chapter 4; elimination, E.
Even-Dar, S. Mannor, Y. Mansour, Journal of Machine Learning Research 7 (2006); alpha spending over the looks as in H.
Robbins, Annals of Mathematical Statistics 41 (1970): 1 / (n (n + 1)) at look n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmtrack.decide.significance import ALPHA, Ratio


@dataclass(frozen=True)
class Rules:
    """Rules of a race.

    Attributes:
        margin: equivalence margin, as a share (0.05: 5 %).
        alpha: probability of dropping the best candidate.
        most_rounds: maximum samples per candidate.
        far: factor by which a candidate must be worse to be dropped on a single sample.
    """

    margin: float = 0.05
    alpha: float = ALPHA
    most_rounds: int = 30
    far: float = 1.5


@dataclass(frozen=True)
class Dropped:
    """Why a candidate was eliminated.

    Attributes:
        ratio: leader over candidate with the interval that excluded 1; None if it was not beaten.
        by: the candidate that beat it; empty if none did.
    """

    why: str
    ratio: Ratio | None = None
    by: str = ""


@dataclass(frozen=True)
class _Sums:
    """Normal equations of candidate + block over some blocks, with the sum of squares about the block means."""

    normal: np.ndarray
    right: np.ndarray
    squares: float = 0.0
    count: int = 0
    blocks: int = 0

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(
            self.normal + other.normal,
            self.right + other.right,
            self.squares + other.squares,
            self.count + other.count,
            self.blocks + other.blocks,
        )


@dataclass(frozen=True)
class _Fit:
    """Least-squares fit: effects and covariances of the candidates, up to the noise variance."""

    of: Mapping[str, int]
    effects: np.ndarray
    spread: np.ndarray
    same_part: np.ndarray
    variance: float
    freedom: int


@dataclass
class Race:
    """Compares candidates by their samples.

    Deterministic: the same samples in the same order give the same race, so that an interrupted one can be replayed.

    Args:
        names: candidates, simplest first.
        better: whether `higher` or `lower` samples are better.
        rules: rules of the race.
        exact: whether samples have no noise, like a size.
    """

    names: Sequence[str]
    better: str = "higher"
    rules: Rules = Rules()
    exact: bool = False
    samples: Mapping[str, list[float]] = field(init=False)
    dropped: dict[str, Dropped] = field(init=False, default_factory=dict)
    waiting: set[str] = field(init=False, default_factory=set)
    _blocks: list[dict[str, list[float]]] = field(init=False, default_factory=lambda: [{}])
    _fitted: _Fit | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.samples = {name: [] for name in self.names}
        self._number = {name: number for number, name in enumerate(self.names)}
        self._closed = self._sums_of({})

    @property
    def alive(self) -> list[str]:
        """Remaining candidates, simplest first."""
        return [name for name in self.names if name not in self.dropped]

    @property
    def tried(self) -> list[str]:
        """Remaining candidates with at least one sample."""
        return [name for name in self.alive if self.samples[name]]

    def begin_block(self) -> None:
        """Begin a block of samples to compare with each other."""
        if self._blocks[-1]:
            self._closed = self._closed + self._sums_of(self._blocks[-1])
            self._blocks.append({})

    def tell(self, name: str, value: float) -> None:
        """Add a sample, and drop the candidates that are significantly worse.

        Raises:
            ValueError: it is not positive.
        """
        if not 0 < value < math.inf:
            raise ValueError(f"a ratio needs samples above 0, and {name} has {value}")
        self.samples[name].append(value)
        sign = 1 if self.better == "higher" else -1
        self._blocks[-1].setdefault(name, []).append(sign * math.log(value))
        self._fitted = None
        self._eliminate(self.alive)

    def drop(self, name: str, why: str) -> None:
        """Eliminate a candidate for a reason other than its samples."""
        self.waiting.discard(name)
        self.dropped.setdefault(name, Dropped(why))

    def hold(self, name: str) -> None:
        """Exclude a candidate from winning and from dropping others until it is admitted."""
        self.waiting.add(name)

    def admit(self, name: str) -> None:
        """Allow a held candidate to win and to drop others."""
        self.waiting.discard(name)
        self._eliminate(self.alive)

    def goodness(self, name: str) -> float:
        """Return the fitted log of a candidate's samples; higher is better."""
        fit = self._fit()
        return float(fit.effects[fit.of[name]])

    def leader(self, among: Iterable[str] | None = None) -> str | None:
        """Return the best eligible candidate, or the best of the given ones; None if there is none."""
        able = [name for name in self.tried if name not in self.waiting] if among is None else [*among]
        return max(able, key=self.goodness, default=None)

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Return how many times as good one candidate is as another, with an interval valid over all looks.

        None if they are not connected by blocks, or the noise is still unknown.
        """
        looks = min(len(self.samples[one]), len(self.samples[other]))
        if not looks:
            return None
        fit = self._fit()
        i, j = fit.of[one], fit.of[other]
        mean = float(fit.effects[i] - fit.effects[j])
        if self.exact:
            return around(mean)
        if not fit.same_part[i, j] or fit.freedom < 1:
            return None
        contrast = float(fit.spread[i, i] + fit.spread[j, j] - 2 * fit.spread[i, j])
        chance = self.rules.alpha / max(1, len(self.names) - 1) / (looks * (looks + 1))
        variance = max(fit.variance, self._own_variance(one, other))
        return around(mean, quantile(chance, fit.freedom) * math.sqrt(variance * contrast))

    def decided(self) -> bool:
        """Return whether no tried candidate can be better than the leader by more than the margin."""
        leader = self.leader()
        return leader is not None and not self.open_against(leader)

    def open_against(self, leader: str) -> list[str]:
        """Return the tried candidates that may be better than the leader by more than the margin."""
        return [name for name in self.tried if name != leader and not self._within(name, leader)]

    def equal(self) -> list[str]:
        """Return the eligible candidates not significantly different from the leader, including it, simplest first."""
        return [name for name in self.tried if name not in self.waiting]

    def choice(self) -> str | None:
        """Return the simplest candidate non-inferior to the leader by the margin, or None."""
        leader = self.leader()
        if leader is None:
            return None
        return next(name for name in self.equal() if name == leader or self._within(leader, name))

    def _within(self, one: str, other: str) -> bool:
        """Return whether one candidate is not better than another by more than the margin, with confidence."""
        ratio = self.ratio(one, other)
        return ratio is not None and ratio.high < 1 + self.rules.margin

    def _eliminate(self, names: Iterable[str]) -> None:
        """Drop the given candidates that are significantly worse than the leader."""
        leader = self.leader()
        if leader is None:
            return
        for name in names:
            if name == leader or name in self.dropped or not self.samples[name]:
                continue
            ratio = self.ratio(leader, name)
            single = len(self.samples[name]) == 1 and not self.exact
            if ratio is None or ratio.low <= 1 or (single and ratio.value < self.rules.far):
                continue
            self.dropped[name] = Dropped(f"{leader} is better", ratio, leader)
            self.waiting.discard(name)

    def _own_variance(self, one: str, other: str) -> float:
        """Estimate the sample variance from two candidates alone: one may be noisier than the rest."""
        pairs = [(block[one], block[other]) for block in self._blocks if one in block and other in block]
        if len(pairs) < 2:
            return 0.0
        differences = [float(np.mean(left) - np.mean(right)) for left, right in pairs]
        sizes = [1 / len(left) + 1 / len(right) for left, right in pairs]
        return float(np.var(differences, ddof=1) / np.mean(sizes))

    def _fit(self) -> _Fit:
        if self._fitted is None:
            self._fitted = self._least_squares()
        return self._fitted

    def _least_squares(self) -> _Fit:
        """Fit candidate + block by least squares, with block effects eliminated."""
        sums = self._closed + self._sums_of(self._blocks[-1])
        known = np.array([number for number, name in enumerate(self.names) if self.samples[name]], dtype=int)
        of = {self.names[number]: position for position, number in enumerate(known)}
        normal, right = sums.normal[np.ix_(known, known)], sums.right[known]
        spread = np.linalg.pinv(normal, rcond=1e-9, hermitian=True)
        effects = spread @ right
        parts = _parts(normal)
        freedom = sums.count - sums.blocks - (len(known) - len(np.unique(parts)))
        variance = max(0.0, sums.squares - float(effects @ right)) / freedom if freedom > 0 else 0.0
        # Effects are relative within a connected component; an isolated candidate is placed by its own samples.
        effects = effects + self._levels(of, effects, parts)
        return _Fit(of, effects, spread, parts[:, None] == parts[None, :], variance, freedom)

    def _sums_of(self, block: Mapping[str, Sequence[float]]) -> _Sums:
        """Return a block's contribution to the normal equations."""
        size = len(self.names)
        values = np.array([value for values in block.values() for value in values])
        if not len(values):
            return _Sums(np.zeros((size, size)), np.zeros(size))
        members = np.array([self._number[name] for name, values in block.items() for _ in values], dtype=int)
        amounts = np.bincount(members, minlength=size).astype(float)
        centred = values - values.mean()
        normal = np.diag(amounts) - np.outer(amounts, amounts) / len(values)
        right = np.bincount(members, weights=centred, minlength=size)
        return _Sums(normal, right, float((centred**2).sum()), len(values), 1)

    def _levels(self, of: Mapping[str, int], effects: np.ndarray, parts: np.ndarray) -> np.ndarray:
        sign = 1 if self.better == "higher" else -1
        means = np.array([sign * np.mean(np.log(self.samples[name])) for name in of])
        levels = np.zeros(len(of))
        for part in np.unique(parts):
            inside = parts == part
            levels[inside] = float(np.mean(means[inside] - effects[inside]))
        return levels


def _parts(normal: np.ndarray) -> np.ndarray:
    """Return the connected component of each candidate: those linked by common blocks."""
    part = np.arange(len(normal))
    for _ in range(len(normal)):
        reached = np.array([part[row != 0].min(initial=own) for row, own in zip(normal, part, strict=True)])
        if (reached == part).all():
            break
        part = reached
    return part


@dataclass(frozen=True)
class Sample:
    """Result of measuring a candidate once.

    Attributes:
        value: the sample, or None if it failed.
        seconds: duration.
        why: reason of the failure, or of being ineligible.
    """

    value: float | None
    seconds: float
    why: str = ""


def duel(
    names: tuple[str, str],
    measure: Callable[[str], Sample],
    seconds: float,
    least: int = 5,
    most: int = 12,
) -> dict[str, list[float]]:
    """Measure two candidates afresh against each other; return the samples of each.

    Claims use only these samples, because the race selects its winner partly by luck. The number of samples is fixed
    from the remaining time and the first sample of each, before any comparison. The order alternates (A B B A), so that
    drift affects both.

    Args:
        measure: measures a candidate once; a failure ends the duel.
        seconds: time limit.
        least: minimum samples of each, regardless of time; 4 against 4 can be significant (see `differences.too_few`).
        most: maximum samples of each.
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
        if done == 2:  # A first sample may include first-call overhead.
            more = min((seconds - cost) / max(cost / 2, 1e-9), most)
            rounds = min(most, max(least, 2 + int(more)))
    return found


def quantile(chance: float, freedom: float) -> float:
    """Return the one-sided quantile of Student's t distribution."""
    # The same as `scipy.stats.t`, whose import takes a second.
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, chance))


def around(mean: float, half: float = 0.0) -> Ratio:
    """Return the ratio whose logarithm is `mean`, with an interval of half width `half`."""
    value, low, high = (math.exp(max(-700.0, min(each, 700.0))) for each in (mean, mean - half, mean + half))
    return Ratio(value, low, high)
