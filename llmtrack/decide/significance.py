"""Statistics of two sets of samples: ratio with interval, test, correction for many tests, and repeats needed.

Tests and intervals are of raw samples, and exact for small ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np

Alternative = Literal["two-sided", "less", "greater"]

ALPHA = 0.05
_RESAMPLES = 2000
# Above this total number of samples, the exact distribution costs more than it gains.
_MOST_EXACT = 100
_MOST_REPEATS_ASKED = 100


@dataclass(frozen=True)
class Ratio:
    """Ratio of the candidate's median to the baseline's, with its bootstrap interval."""

    value: float
    low: float
    high: float


def ratio_of_medians(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Estimate median(candidate) / median(baseline) with its 95 % percentile bootstrap interval.

    The sides are resampled independently. The interval is deterministic, and swapping the sides inverts it.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 16.

    Raises:
        ValueError: a side has no samples, or samples that are not positive.
    """
    import numpy as np

    before, after = (np.asarray(side, dtype=np.float64) for side in (baseline, candidate))
    if not len(before) or not len(after):
        raise ValueError("no samples to compare")
    if before.min() <= 0 or after.min() <= 0:
        raise ValueError("a ratio needs samples above 0")
    # Sort the sides, so that the interval of b over a is exactly the inverse of that of a over b.
    first, second = sorted((before.tobytes(), after.tobytes()))
    low, high = map(float, np.percentile(_resampled_medians(second, 1) / _resampled_medians(first, 0), [2.5, 97.5]))
    if second != after.tobytes():
        low, high = 1 / high, 1 / low
    return Ratio(float(np.median(after) / np.median(before)), low, high)


@lru_cache(256)
def _resampled_medians(samples: bytes, seed: int) -> np.ndarray:
    """Return the medians of a side's resamples, cached because each side is part of many pairs.

    Args:
        samples: float64 bytes.
    """
    import numpy as np

    values = np.frombuffer(samples)
    picks = np.random.default_rng(seed).integers(0, len(values), size=(_RESAMPLES, len(values)))
    return np.median(values[picks], axis=1)


def mann_whitney_p(
    baseline: Sequence[float], candidate: Sequence[float], alternative: Alternative = "two-sided"
) -> float:
    """Return the p-value of the Mann-Whitney U test.

    Up to 100 samples in total it is exact, including ties: the rank sums (with mean ranks for ties) of all assignments
    of samples to sides are counted. Beyond that, the normal approximation is used, corrected for ties and continuity.

    Source: H. Mann, D. Whitney, Annals of Mathematical Statistics 18 (1947); E. Lehmann, Nonparametrics (1975), chapter
    1, for ties.

    Args:
        alternative: `less`: the candidate's samples tend to be smaller; `greater`: larger.

    Raises:
        ValueError: a side has no samples.
    """
    if not len(baseline) or not len(candidate):
        raise ValueError("no samples to compare")
    ranks = _doubled_ranks([*candidate, *baseline])
    tails = _exact_tails if len(ranks) <= _MOST_EXACT else _normal_tails
    less, greater = tails(ranks, len(candidate))
    p = {"less": less, "greater": greater, "two-sided": 2 * min(less, greater)}[alternative]
    return min(1.0, p)


def least_p(n_baseline: int, n_candidate: int) -> float:
    """Return the smallest possible two-sided p-value for these sample sizes: 0.1 for 3 against 3."""
    return min(1.0, 2 / math.comb(n_baseline + n_candidate, n_baseline))


@lru_cache(1024)
def enough_repeats(tests: int, alpha: float = ALPHA, sides: int = 2) -> int:
    """Return the repeats of each side needed for significance among some tests, which are one- or two-sided."""
    return next(
        (n for n in range(2, _MOST_REPEATS_ASKED) if least_p(n, n) * sides / 2 * tests < alpha),
        _MOST_REPEATS_ASKED,
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm-adjusted p-values in the same order.

    The probability that any is below alpha while nothing differs is at most alpha.

    Source: S. Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, highest = [0.0] * len(p_values), 0.0
    for position, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _doubled_ranks(values: Sequence[float]) -> np.ndarray:
    """Return twice the rank of each value, from 2 on; mean ranks of ties become integers."""
    import numpy as np

    array = np.asarray(values, dtype=np.float64)
    _, inverse, counts = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    # Ties share the ranks first..last, whose doubled mean is first + last.
    return (last - counts + 1 + last)[inverse]


def _exact_tails(ranks: np.ndarray, n: int) -> tuple[float, float]:
    """Return P(sum <= observed) and P(sum >= observed) over all choices of n ranks; the first n are the observed ones."""
    import numpy as np

    observed, total = int(ranks[:n].sum()), int(ranks.sum())
    # ways[k, s]: number of choices of k ranks with sum s.
    ways = np.zeros((n + 1, total + 1))
    ways[0, 0] = 1
    reached = 0
    for number, rank in enumerate(map(int, ranks), start=1):
        # Of so many ranks there are no more to choose, and no larger sums; with fewer, the others are too few for n.
        least, most = max(1, n - (len(ranks) - number)), min(number, n)
        ways[least : most + 1, rank : reached + rank + 1] += ways[least - 1 : most, : reached + 1].copy()
        reached += rank
    probabilities = ways[n] / ways[n].sum()
    return float(probabilities[: observed + 1].sum()), float(probabilities[observed:].sum())


def _normal_tails(ranks: np.ndarray, n: int) -> tuple[float, float]:
    import numpy as np

    size = len(ranks)
    m = size - n
    # In ranks, not doubled ones.
    observed = ranks[:n].sum() / 2
    mean = n * (size + 1) / 2
    _, counts = np.unique(ranks, return_counts=True)
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (size * (size - 1))
    variance = n * m / 12 * (size + 1 - ties)
    if variance <= 0:
        return 1.0, 1.0

    def lower_tail(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    deviation = math.sqrt(variance)
    return lower_tail((observed + 0.5 - mean) / deviation), lower_tail((mean + 0.5 - observed) / deviation)
