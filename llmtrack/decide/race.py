"""Find the best of many candidates by racing on blocks of samples; independent of engines and MLflow.

Samples of one block are taken within seconds, so that drift affects all of them alike. The logarithm of a sample is
modelled as candidate + block + noise and fitted by least squares, so that candidates are compared within blocks, also
indirectly through a third one. A block during which other programs disturbed the machine counts less, and on its own
decides nothing unless all blocks are so: a way that uses all cores loses more to them than one that uses few.

A candidate is dropped when the interval of its ratio to the leader excludes 1. The interval is corrected for the number
of candidates and of looks, so that the best one is dropped with probability at most `Rules.alpha`.

Sources: two-way layout with unequal numbers, H. Scheffe, The Analysis of Variance (1959), chapter 4; elimination, E.
Even-Dar, S. Mannor, Y. Mansour, Journal of Machine Learning Research 7 (2006); alpha spending over the looks as in H.
Robbins, Annals of Mathematical Statistics 41 (1970): 1 / (n (n + 1)) at look n.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from llmtrack.decide.significance import ALPHA, Ratio

# Weight of a disturbed block in the fit, and the common blocks after which two candidates are comparable without a calm one.
_DISTURBED_WEIGHT = 0.01
_ENOUGH_BLOCKS = 3
# Degrees of freedom from which the calm blocks alone determine the noise.
_LEAST_FREEDOM = 2


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
        by: the candidate that beat it, or empty.
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
    """Least-squares fit.

    Attributes:
        index: position of each candidate in the arrays.
        covariance: of the effects, up to the noise variance.
        variance: of the noise, with its degrees of freedom.
    """

    index: Mapping[str, int]
    effects: np.ndarray
    covariance: np.ndarray
    component: np.ndarray
    variance: float
    freedom: int


@dataclass
class Race:
    """Compares candidates, of which the simplest is first, by their samples.

    Deterministic: the same samples in the same order give the same race, so that an interrupted one can be replayed.

    Args:
        better: whether `higher` or `lower` samples are better.
        exact: whether samples have no noise, like a size.
    """

    names: Sequence[str]
    better: str = "higher"
    rules: Rules = Rules()
    exact: bool = False
    samples: Mapping[str, list[float]] = field(init=False)
    dropped: dict[str, Dropped] = field(init=False, default_factory=dict)
    held: set[str] = field(init=False, default_factory=set)
    _blocks: list[dict[str, list[float]]] = field(init=False, default_factory=lambda: [{}])
    _weights: list[float] = field(init=False, default_factory=lambda: [1.0])
    _fitted: _Fit | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        size = len(self.names)
        self.samples = {name: [] for name in self.names}
        self._index = {name: index for index, name in enumerate(self.names)}
        self._sign = 1 if self.better == "higher" else -1
        # Means of each candidate's log samples, of which higher ones are better.
        self._means: dict[str, float] = {}
        # Of the blocks before the current one: the calm ones, and the disturbed ones.
        self._sums = {1.0: self._sums_of({}), _DISTURBED_WEIGHT: self._sums_of({})}
        # Pairs: blocks that both were sampled in, and whether one of those before the current one was calm.
        self._common_blocks = np.zeros((size, size), dtype=int)
        self._calm = np.zeros((size, size), dtype=bool)
        self._comparable: np.ndarray | None = None

    @property
    def alive(self) -> list[str]:
        """Remaining candidates, simplest first."""
        return [name for name in self.names if name not in self.dropped]

    @property
    def count(self) -> int:
        """Number of all samples."""
        return sum(map(len, self.samples.values()))

    @property
    def tried(self) -> list[str]:
        """Remaining candidates with at least one sample."""
        return [name for name in self.names if self.is_tried(name)]

    def is_tried(self, name: str) -> bool:
        """Return whether a candidate remains and has a sample."""
        return name not in self.dropped and bool(self.samples[name])

    def begin_block(self) -> None:
        """Begin a block of samples to compare with each other."""
        if self._blocks[-1]:
            self._sums = self._all_sums()
            self._calm = self._calm_pairs()
            self._blocks.append({})
            self._weights.append(1.0)

    def add_sample(self, name: str, value: float, disturbed: bool = False) -> None:
        """Add a sample, and drop the candidates that are significantly worse than the leader.

        Args:
            disturbed: whether the machine was disturbed meanwhile; the whole block counts as disturbed then.

        Raises:
            ValueError: it is not positive.
        """
        if not 0 < value < math.inf:
            raise ValueError(f"a ratio needs samples above 0, and {name} has {value}")
        self.samples[name].append(value)
        self._means[name] = float(self._sign * np.mean(np.log(self.samples[name])))
        block = self._blocks[-1]
        if name not in block:
            index, others = self._index[name], [self._index[other] for other in block]
            self._common_blocks[index, others] += 1
            self._common_blocks[others, index] += 1
        block.setdefault(name, []).append(self._sign * math.log(value))
        if disturbed:
            self._weights[-1] = _DISTURBED_WEIGHT
        self._fitted = self._comparable = None
        self._eliminate()

    def drop(self, name: str, why: str) -> None:
        """Eliminate a candidate for a reason other than its samples."""
        self.held.discard(name)
        self.dropped.setdefault(name, Dropped(why))

    def disqualify(self, name: str, why: str) -> None:
        """Eliminate a candidate, even the leader, and readmit those that were worse than it."""
        self.dropped = {other: dropped for other, dropped in self.dropped.items() if dropped.by != name}
        self.held.discard(name)
        self.dropped[name] = Dropped(why)

    def better_than(self, name: str) -> list[str]:
        """Return the candidates that are significantly better by their samples: those that eliminated one, directly or
        through others, and those whose interval says so.
        """
        found, eliminated = [], name
        while (dropped := self.dropped.get(eliminated)) is not None and dropped.by:
            eliminated = dropped.by
            found.append(eliminated)
        sampled = [other for other in self.names if self.samples[other] and other != name] if self.samples[name] else []
        return found + [other for other in sampled if other not in found and self._beats(other, name)]

    def hold(self, name: str) -> None:
        """Exclude a candidate from winning and from dropping others until it is admitted."""
        self.held.add(name)

    def admit(self, name: str) -> None:
        """Allow a held candidate to win and to drop others."""
        self.held.discard(name)
        self._eliminate()

    def goodness(self, name: str) -> float:
        """Return the fitted log of a candidate's samples; higher is better."""
        fit = self._fit()
        return float(fit.effects[fit.index[name]])

    def leader(self, among: Iterable[str] | None = None) -> str | None:
        """Return the best eligible candidate, or the best of the given ones; None if there is none.

        Those compared with the others only while the machine was disturbed do not lead.
        """
        eligible = self.equal() if among is None else [*among]
        return max(self.calmly_compared(eligible) or eligible, key=self.goodness, default=None)

    def calmly_compared(self, names: Iterable[str]) -> list[str]:
        """Return those of some candidates that were compared with most others while the machine was calm.

        Where it never was, these are all; three common disturbed blocks are as good as a calm one.
        """
        if min(self._weights) == 1.0:
            return [*names]
        components = self._comparable_components()
        sampled = [self._index[name] for name in self.names if self.samples[name]]
        largest = np.bincount(components[sampled], minlength=1).argmax() if sampled else 0
        return [name for name in names if components[self._index[name]] == largest]

    def comparable(self, one: str, other: str) -> bool:
        """Return whether two candidates were compared while the machine was calm, directly or through others; see
        `calmly_compared`.
        """
        components = self._comparable_components()
        return self.exact or bool(components[self._index[one]] == components[self._index[other]])

    def ratio(self, one: str, other: str) -> Ratio | None:
        """Return how many times as good one candidate is as another, with an interval valid over all looks.

        None if they are not connected by blocks, or the noise is still unknown.
        """
        looks = min(len(self.samples[one]), len(self.samples[other]))
        if not looks:
            return None
        fit = self._fit()
        i, j = fit.index[one], fit.index[other]
        mean = float(fit.effects[i] - fit.effects[j])
        if self.exact:
            return ratio_around(mean)
        if fit.component[i] != fit.component[j] or fit.freedom < 1:
            return None
        contrast = float(fit.covariance[i, i] + fit.covariance[j, j] - 2 * fit.covariance[i, j])
        chance = self.rules.alpha / max(1, len(self.names) - 1) / (looks * (looks + 1))
        variance = max(fit.variance, self._variance_of_pair(one, other))
        return ratio_around(mean, t_quantile(chance, fit.freedom) * math.sqrt(variance * contrast))

    def open_against(self, leader: str) -> list[str]:
        """Return the tried candidates that may be better than the leader by more than the margin."""
        return [name for name in self.tried if name != leader and not self._within(name, leader)]

    def equal(self) -> list[str]:
        """Return the eligible candidates not significantly different from the leader, including it, simplest first."""
        return [name for name in self.tried if name not in self.held]

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

    def _eliminate(self) -> None:
        """Drop the candidates that are significantly worse than the leader."""
        leader = self.leader()
        if leader is None:
            return
        for name in self.tried:
            if name == leader or (ratio := self._beats(leader, name)) is None:
                continue
            self.dropped[name] = Dropped(f"{leader} is better", ratio, leader)
            self.held.discard(name)

    def _beats(self, one: str, other: str) -> Ratio | None:
        """Return how many times as good a candidate is as one that it is significantly better than, else None."""
        if not self.comparable(one, other):
            return None
        ratio = self.ratio(one, other)
        single = len(self.samples[other]) == 1 and not self.exact
        if ratio is None or ratio.low <= 1 or (single and ratio.value < self.rules.far):
            return None
        return ratio

    def _comparable_components(self) -> np.ndarray:
        """Return the component of each candidate by the pairs that are comparable."""
        if self._comparable is None:
            calm = self._calm_pairs()
            linked = calm | (self._common_blocks >= _ENOUGH_BLOCKS) if calm.any() else self._common_blocks > 0
            self._comparable = _components(linked.astype(float))
        return self._comparable

    def _calm_pairs(self) -> np.ndarray:
        """Return the pairs with a common calm block, including the current one."""
        if self._weights[-1] < 1.0:
            return self._calm
        current = [self._index[name] for name in self._blocks[-1]]
        calm = self._calm.copy()
        calm[np.ix_(current, current)] |= ~np.eye(len(current), dtype=bool)
        return calm

    def _variance_of_pair(self, one: str, other: str) -> float:
        """Estimate the sample variance from two candidates alone: one may be noisier than the rest."""
        pairs = [
            (weight, block[one], block[other])
            for weight, block in zip(self._weights, self._blocks, strict=True)
            if one in block and other in block
        ]
        calm = [pair for pair in pairs if pair[0] == 1.0]
        pairs = calm if len(calm) >= 2 else pairs
        if len(pairs) < 2:
            return 0.0
        weights = np.array([weight for weight, _, _ in pairs])
        # NumPy's mean of one or two values takes as long as all other work for a sample.
        differences = np.array([sum(values) / len(values) - sum(others) / len(others) for _, values, others in pairs])
        size = sum(1 / len(values) + 1 / len(others) for _, values, others in pairs) / len(pairs)
        residuals = differences - (differences * weights).sum() / weights.sum()
        return float((weights * residuals**2).sum() / (len(pairs) - 1) / size)

    def _fit(self) -> _Fit:
        if self._fitted is None:
            self._fitted = self._least_squares()
        return self._fitted

    def _least_squares(self) -> _Fit:
        """Fit candidate + block by least squares, with block effects eliminated."""
        calm, disturbed = self._all_sums().values()
        sampled = [index for index, name in enumerate(self.names) if self.samples[name]]
        names = [self.names[index] for index in sampled]
        effects, covariance, component, variance, freedom = _solve(calm + disturbed, np.array(sampled, dtype=int))
        if calm.blocks and disturbed.blocks:
            # A disturbance is no noise of the others: one that slows candidates unequally would hide all differences.
            *_, calm_variance, calm_freedom = _solve(calm, np.flatnonzero(calm.normal.diagonal()))
            if calm_freedom >= _LEAST_FREEDOM:
                variance, freedom = calm_variance, calm_freedom
        # Effects are relative within a connected component; an isolated candidate is placed by its own samples.
        means = np.array([self._means[name] for name in names])
        levels = np.zeros(len(names))
        for number in set(component.tolist()):
            inside = component == number
            levels[inside] = float(np.mean(means[inside] - effects[inside]))
        index = {name: position for position, name in enumerate(names)}
        return _Fit(index, effects + levels, covariance, component, variance, freedom)

    def _all_sums(self) -> dict[float, _Sums]:
        """Return the normal equations of the calm and of the disturbed blocks, including the current one."""
        weight = self._weights[-1]
        return self._sums | {weight: self._sums[weight] + self._sums_of(self._blocks[-1], weight)}

    def _sums_of(self, block: Mapping[str, Sequence[float]], weight: float = 1.0) -> _Sums:
        """Return a block's contribution to the weighted normal equations."""
        size = len(self.names)
        values = np.array([value for values in block.values() for value in values])
        if not len(values):
            return _Sums(np.zeros((size, size)), np.zeros(size))
        members = np.array([self._index[name] for name, values in block.items() for _ in values], dtype=int)
        counts = np.bincount(members, minlength=size).astype(float)
        centred = values - values.mean()
        normal = np.diag(counts) - np.outer(counts, counts) / len(values)
        right = np.bincount(members, weights=centred, minlength=size)
        return _Sums(weight * normal, weight * right, weight * float((centred**2).sum()), len(values), 1)


def _solve(sums: _Sums, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, int]:
    """Solve the normal equations of some candidates: effects, their covariances and components, variance, freedom."""
    normal, right = sums.normal[np.ix_(indices, indices)], sums.right[indices]
    covariance = np.linalg.pinv(normal, rcond=1e-9, hermitian=True)
    effects = covariance @ right
    component = _components(normal)
    freedom = sums.count - sums.blocks - (len(indices) - len(set(component.tolist())))
    variance = max(0.0, sums.squares - float(effects @ right)) / freedom if freedom > 0 else 0.0
    return effects, covariance, component, variance, freedom


def _components(linked: np.ndarray) -> np.ndarray:
    """Return the connected component of each candidate, by a matrix that is not 0 where two are linked."""
    component = np.arange(len(linked))
    while True:
        reached = np.minimum(component, np.where(linked != 0, component, len(linked)).min(axis=1, initial=len(linked)))
        if (reached == component).all():
            return component
        component = reached


@lru_cache(4096)
def t_quantile(chance: float, freedom: float) -> float:
    """Return the one-sided quantile of Student's t distribution."""
    # The same as `scipy.stats.t`, whose import takes a second.
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, chance))


def ratio_around(mean: float, half: float = 0.0) -> Ratio:
    """Return the ratio whose logarithm is `mean`, with an interval of half width `half`."""
    value, low, high = (math.exp(max(-700.0, min(end, 700.0))) for end in (mean, mean - half, mean + half))
    return Ratio(value, low, high)
