"""Difference of one metric between two runs: ratio, significance and wording.

Tests and intervals are of raw samples, and exact for small ones. All comparisons are formatted here, alike: a ratio as
`5.8x (4.4 to 7.4)`, a quality difference as `+0.52 % (0.3 to 0.8)`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from llmtrack import metrics as schema
from llmtrack.tracked.run import Spread

if TYPE_CHECKING:
    import numpy as np

Alternative = Literal["two-sided", "less", "greater"]
Verdict = Literal["better", "worse", "changed", "same", "unknown", "not comparable", "failed", "missing"]

RESAMPLES = 2000
ALPHA = 0.05
# Above this total number of samples, the exact distribution costs more than it gains.
_MOST_EXACT = 100
_MOST_REPEATS_ASKED = 100
# Unit to the words for more and less of it.
_WORDS = {"tokens/s": ("faster", "slower"), "s": ("longer", "shorter"), "ms": ("longer", "shorter")}


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
    picks = np.random.default_rng(seed).integers(0, len(values), size=(RESAMPLES, len(values)))
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
    for rank in map(int, ranks):
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
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


@dataclass(frozen=True)
class Difference:
    """A candidate's metric against a baseline's.

    Attributes:
        baseline: headline value in the metric's unit, as is `candidate`.
        ratio: candidate over baseline, with a 95 % bootstrap interval if there are raw samples, else the widest
            interval that the tracked intervals of both medians allow, else none (both ends equal the value). None if a
            value is not positive.
        n_baseline: repeats; 1 for a single value.
        p_value: two-sided Mann-Whitney p-value; None without raw samples.
        p_adjusted: corrected for multiple comparisons (Holm).
        verdict: `better`, `worse`, `changed` (neither direction is better), `same`, `unknown` (inconclusive), or why
            nothing is compared: `not comparable`, `failed`, `missing`.
        words: explanation of the verdict.
        doubts: warnings of either run, with the run's name.
        repeats_needed: repeats of each side needed to be conclusive if there are too few; else 0.
    """

    metric: str
    baseline: float
    candidate: float
    ratio: Ratio | None
    n_baseline: int = 1
    n_candidate: int = 1
    p_value: float | None = None
    p_adjusted: float | None = None
    verdict: Verdict = "unknown"
    words: str = ""
    doubts: tuple[str, ...] = ()
    repeats_needed: int = 0

    @property
    def why(self) -> str:
        """The explanation without the remedy."""
        return self.words.partition(": measure at least")[0]

    @property
    def repeated(self) -> bool:
        """Whether a side was repeated, so that noise is known."""
        return max(self.n_baseline, self.n_candidate) > 1

    @property
    def conclusive(self) -> bool:
        """Whether the two differ significantly."""
        return self.verdict in ("better", "worse", "changed")


def build_difference(
    metric: str,
    baseline: float,
    candidate: float,
    baseline_samples: Sequence[float] = (),
    candidate_samples: Sequence[float] = (),
    spreads: tuple[Spread, Spread] | None = None,
) -> Difference:
    """Build the difference of two headline values without a verdict; the spreads count without raw samples."""
    if not baseline_samples or not candidate_samples or min(*baseline_samples, *candidate_samples) <= 0:
        return _without_samples(metric, baseline, candidate, spreads)
    return Difference(
        metric,
        baseline,
        candidate,
        sampled_ratio(metric, baseline_samples, candidate_samples),
        len(baseline_samples),
        len(candidate_samples),
        mann_whitney_p(baseline_samples, candidate_samples),
    )


def _without_samples(
    metric: str, baseline: float, candidate: float, spreads: tuple[Spread, Spread] | None
) -> Difference:
    if baseline <= 0 or candidate < 0:
        return Difference(metric, baseline, candidate, None)
    ratio = candidate / baseline
    if spreads is None or min(spread.low for spread in spreads) <= 0:
        return Difference(metric, baseline, candidate, Ratio(ratio, ratio, ratio))
    before, after = spreads
    widest = Ratio(ratio, after.low / before.high, after.high / before.low)
    return Difference(metric, baseline, candidate, widest, before.n, after.n)


def sampled_ratio(metric: str, baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Estimate candidate over baseline; for a rate through the times, like its headline value."""
    if schema.metric(metric).rate:
        return ratio_of_medians([1 / rate for rate in candidate], [1 / rate for rate in baseline])
    return ratio_of_medians(baseline, candidate)


def judge(
    differences: Sequence[Difference], alpha: float = ALPHA, among: int = 1, floor: float = 0.0
) -> list[Difference]:
    """Add verdicts to differences of one metric, with p-values corrected for multiple comparisons.

    A difference is significant if its adjusted p-value is below alpha and its interval excludes 1; without raw samples,
    if there were enough repeats for such a p-value and the tracked intervals are disjoint. Deterministic metrics
    (quality, sizes) have no noise: a change beyond the metric's tolerance is a difference.

    Args:
        alpha: accepted probability of a false alarm over all of them.
        among: total number of comparisons, if there are more than these.
        floor: noise floor as a share; a difference within it is not significant.
    """
    tests = max(among, sum(difference.repeated for difference in differences))
    p_values = [difference.p_value for difference in differences if difference.p_value is not None]
    adjusted = iter(holm([*p_values, *[1.0] * (tests - len(p_values))]))
    judged = []
    for difference in differences:
        p_adjusted = next(adjusted) if difference.p_value is not None else None
        judged.append(_judge_one(dataclasses.replace(difference, p_adjusted=p_adjusted), tests, alpha))
    return [_same_within_floor(difference, floor) for difference in judged]


def _judge_one(difference: Difference, tests: int, alpha: float) -> Difference:
    entry = schema.metric(difference.metric)
    if difference.ratio is None:
        words = "the baseline is 0: no ratio" if difference.baseline == 0 else "a value is below 0: no ratio"
        return dataclasses.replace(difference, words=words)
    if difference.repeated:
        return _judge_repeats(difference, difference.ratio, tests, alpha)
    if entry.sureness != "exact":
        words = f"{difference_text(difference)}, one value each: noise unknown"
        needed = enough_repeats(tests, alpha) if entry.sureness == "sampled" else 0
        return dataclasses.replace(difference, words=words, repeats_needed=needed)
    if abs(difference.ratio.value - 1) <= entry.tolerance:
        tolerance = f" beyond {100 * entry.tolerance:.1f} %" if entry.tolerance else ""
        return dataclasses.replace(difference, verdict="same", words=f"no difference{tolerance}")
    return _with_direction(difference, difference.ratio)


def _judge_repeats(difference: Difference, ratio: Ratio, tests: int, alpha: float) -> Difference:
    sizes = difference.n_baseline, difference.n_candidate
    if least_p(*sizes) * tests >= alpha:
        words = too_few_text(*sizes, tests, alpha)
        return dataclasses.replace(difference, words=words, repeats_needed=enough_repeats(tests, alpha))
    significant = difference.p_adjusted is None or difference.p_adjusted < alpha
    if significant and not ratio.low <= 1 <= ratio.high:
        return _with_direction(difference, ratio)
    words = f"no significant difference: {difference_text(difference)}"
    return dataclasses.replace(difference, verdict="same", words=words)


def _with_direction(difference: Difference, ratio: Ratio) -> Difference:
    """Add the verdict of a significant change, in words such as `faster: 1.12x (1.08 to 1.15)`."""
    entry = schema.metric(difference.metric)
    more, less = _WORDS.get(entry.unit, ("higher", "lower"))
    verdict: Verdict = "changed"
    if entry.better != "-":
        verdict = "better" if (ratio.value > 1) == (entry.better == "higher") else "worse"
    words = f"{more if ratio.value > 1 else less}: {difference_text(difference)}"
    return dataclasses.replace(difference, verdict=verdict, words=words)


def _same_within_floor(difference: Difference, floor: float) -> Difference:
    """Replace the verdict of a significant difference within the noise floor by `same`."""
    if not difference.conclusive or difference.ratio is None or not is_within_floor(difference.ratio.value, floor):
        return difference
    words = f"{below_floor_text(floor)}: {difference_text(difference)}"
    return dataclasses.replace(difference, verdict="same", words=words)


def is_within_floor(ratio: float, floor: float) -> bool:
    """Return whether a ratio is within the noise floor."""
    return ratio > 0 and abs(math.log(ratio)) <= math.log1p(floor)


def below_floor_text(floor: float) -> str:
    """Describe a difference below the noise floor."""
    return f"no more than equal settings differed here, {floor:.0%}"


def difference_text(difference: Difference) -> str:
    """Format the ratio with its interval, or the relative change of a quality metric; empty without a ratio."""
    if difference.ratio is None:
        return ""
    return comparison_text(difference.metric, difference.ratio, difference.repeated)


def comparison_text(metric: str, ratio: Ratio, interval: bool = True) -> str:
    """Format a ratio in the style of its metric; see `llmtrack.decide.differences`."""
    return (change_text if schema.metric(metric).of_text else ratio_text)(ratio, interval)


def too_few_text(n_baseline: int, n_candidate: int, tests: int, alpha: float = ALPHA, sides: int = 2) -> str:
    """Explain that there are too few repeats for significance among some tests, and how many are needed."""
    among = f" among {tests} comparisons" if tests > 1 else ""
    return (
        f"too few repeats{among}, {n_baseline} against {n_candidate}: "
        f"measure at least {enough_repeats(tests, alpha, sides)} of each"
    )


def enough_repeats(tests: int, alpha: float = ALPHA, sides: int = 2) -> int:
    """Return the repeats of each side needed for significance; see `too_few_text`."""
    return next(
        (n for n in range(2, _MOST_REPEATS_ASKED) if least_p(n, n) * sides / 2 * tests < alpha),
        _MOST_REPEATS_ASKED,
    )


def ratio_text(ratio: Ratio | float, interval: bool = True) -> str:
    """Format a ratio with its interval: `5.8x (4.4 to 7.4)`."""
    if not isinstance(ratio, Ratio):
        return f"{ratio:,.{_decimals(ratio)}f}x"
    if not interval:
        return ratio_text(ratio.value)
    # Use as many decimals for all three as the smallest needs.
    digits = _decimals(min(ratio.value, ratio.low))
    value, low, high = (f"{number:,.{digits}f}" for number in (ratio.value, ratio.low, ratio.high))
    return f"{value}x ({low} to {high})"


def change_text(ratio: Ratio | float, interval: bool = True) -> str:
    """Format a ratio as a signed change with its interval: `+0.52 % (0.3 to 0.8)`; see `ratio_text`."""
    if not isinstance(ratio, Ratio):
        return share_text(ratio - 1)
    if not interval or ratio.low == ratio.high:
        return share_text(ratio.value - 1)
    low, high = (100 * (end - 1) for end in (ratio.low, ratio.high))
    digits = next((n for n in (1, 2) if f"{low:.{n}f}" != f"{high:.{n}f}"), 2)
    return f"{share_text(ratio.value - 1)} ({low:.{digits}f} to {high:.{digits}f})"


def share_text(share: float) -> str:
    """Format a signed share in percent: 0.0052 as `+0.52 %`."""
    percent = 100 * share
    return f"{percent:+,.0f} %" if abs(percent) >= 1000 else f"{percent:+.3g} %"


def _decimals(ratio: float) -> int:
    """Return the decimals for two significant digits."""
    for least, digits in ((100, 0), (2, 1), (0.1, 2), (0.01, 3)):
        if abs(ratio) >= least:
            return digits
    return 2 if ratio == 0 else 4
