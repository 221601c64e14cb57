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

RESAMPLES = 2000
ALPHA = 0.05
# Above this total number of samples, the exact distribution costs more than it gains.
_MOST_EXACT = 100


@dataclass(frozen=True)
class Ratio:
    """Ratio of the candidate's median to the baseline's, with its bootstrap interval."""

    value: float
    low: float
    high: float


def ratio_of_medians(baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Return median(candidate) / median(baseline) and its 95 % percentile bootstrap interval.

    The sides are resampled independently. The interval is deterministic, and swapping the sides inverts it.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 16.

    Raises:
        ValueError: a side has no samples, or samples that are not positive.
    """
    import numpy as np

    base, other = (np.asarray(side, dtype=np.float64) for side in (baseline, candidate))
    if not len(base) or not len(other):
        raise ValueError("no samples to compare")
    if base.min() <= 0 or other.min() <= 0:
        raise ValueError("a ratio needs samples above 0")
    # Sort the sides, so that the interval of b over a is exactly the inverse of that of a over b.
    first, second = sorted((base.tobytes(), other.tobytes()))
    low, high = map(float, np.percentile(_medians(second, 1) / _medians(first, 0), [2.5, 97.5]))
    if second != other.tobytes():
        low, high = 1 / high, 1 / low
    return Ratio(float(np.median(other) / np.median(base)), low, high)


@lru_cache(256)
def _medians(samples: bytes, draw: int) -> np.ndarray:
    """Return the medians of a side's resamples, cached because each side is part of many pairs.

    Args:
        samples: float64 bytes.
        draw: seed; different for the two sides of a pair.
    """
    import numpy as np

    side = np.frombuffer(samples)
    picks = np.random.default_rng(draw).integers(0, len(side), size=(RESAMPLES, len(side)))
    return np.median(side[picks], axis=1)


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
    corrected, highest = [0.0] * len(p_values), 0.0
    for position, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[index]))
        corrected[index] = highest
    return corrected


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

    seen, total = int(ranks[:n].sum()), int(ranks.sum())
    # ways[k, s]: number of choices of k ranks with sum s.
    ways = np.zeros((n + 1, total + 1))
    ways[0, 0] = 1
    for rank in map(int, ranks):
        ways[1:, rank:] += ways[:-1, : total + 1 - rank].copy()
    chosen = ways[n] / ways[n].sum()
    return float(chosen[: seen + 1].sum()), float(chosen[seen:].sum())


def _normal_tails(ranks: np.ndarray, n: int) -> tuple[float, float]:
    import numpy as np

    size = len(ranks)
    m = size - n
    # In ranks, not doubled ones.
    seen = ranks[:n].sum() / 2
    mean = n * (size + 1) / 2
    _, counts = np.unique(ranks, return_counts=True)
    ties = float((counts.astype(float) ** 3 - counts).sum()) / (size * (size - 1))
    variance = n * m / 12 * (size + 1 - ties)
    if variance <= 0:
        return 1.0, 1.0

    def lower_tail(z: float) -> float:
        return 0.5 * math.erfc(-z / math.sqrt(2))

    deviation = math.sqrt(variance)
    return lower_tail((seen + 0.5 - mean) / deviation), lower_tail((mean + 0.5 - seen) / deviation)


Verdict = Literal["better", "worse", "changed", "same", "unknown", "not comparable", "failed", "missing"]

_MOST_REPEATS_ASKED = 100
# Unit to the words for more and less of it.
_WORDS = {"tokens/s": ("faster", "slower"), "s": ("longer", "shorter"), "ms": ("longer", "shorter")}


@dataclass(frozen=True)
class Difference:
    """A candidate's metric against a baseline's.

    Attributes:
        baseline: headline value in the metric's unit.
        candidate: likewise.
        ratio: candidate over baseline, with a 95 % bootstrap interval if there are raw samples, else the widest
            interval that the tracked intervals of both medians allow, else none (both ends equal the value). None if a
            value is not positive.
        n_baseline: repeats of the baseline; 1 for a single value.
        n_candidate: likewise.
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


def difference(
    metric: str,
    baseline: float,
    candidate: float,
    baseline_samples: Sequence[float] = (),
    candidate_samples: Sequence[float] = (),
    spreads: tuple[Spread, Spread] | None = None,
) -> Difference:
    """Build a metric's difference without a verdict; see `judge`.

    Args:
        baseline: headline value.
        candidate: headline value.
        spreads: tracked spreads of both, used without raw samples.
    """
    both = (*baseline_samples, *candidate_samples)
    if not baseline_samples or not candidate_samples or min(both) <= 0:
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
    if spreads is None or min(each.low for each in spreads) <= 0:
        return Difference(metric, baseline, candidate, Ratio(ratio, ratio, ratio))
    before, after = spreads
    widest = Ratio(ratio, after.low / before.high, after.high / before.low)
    return Difference(metric, baseline, candidate, widest, before.n, after.n)


def sampled_ratio(metric: str, baseline: Sequence[float], candidate: Sequence[float]) -> Ratio:
    """Return candidate over baseline; for a rate through the times, like its headline value."""
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
    tests = max(among, sum(each.repeated for each in differences))
    p_values = [each.p_value for each in differences if each.p_value is not None]
    adjusted = iter(holm([*p_values, *[1.0] * (tests - len(p_values))]))
    judged = []
    for each in differences:
        corrected = next(adjusted) if each.p_value is not None else None
        judged.append(_above_floor(_judged(dataclasses.replace(each, p_adjusted=corrected), tests, alpha), floor))
    return judged


def _judged(each: Difference, tests: int, alpha: float) -> Difference:
    entry = schema.metric(each.metric)
    if each.ratio is None:
        zero = "the baseline is 0: no ratio" if each.baseline == 0 else "a value is below 0: no ratio"
        return dataclasses.replace(each, words=zero)
    if each.repeated:
        return _judged_by_repeats(each, each.ratio, tests, alpha)
    if entry.sureness != "exact":
        words = f"{difference_text(each)}, one value each: noise unknown"
        needed = enough_repeats(tests, alpha) if entry.sureness == "sampled" else 0
        return dataclasses.replace(each, words=words, repeats_needed=needed)
    if abs(each.ratio.value - 1) <= entry.tolerance:
        beyond = f" beyond {entry.tolerance:.1%}".replace("%", " %") if entry.tolerance else ""
        words = f"no difference{beyond}"
        return dataclasses.replace(each, verdict="same", words=words)
    return dataclasses.replace(each, verdict=_direction(each), words=_change_words(each))


def _judged_by_repeats(each: Difference, ratio: Ratio, tests: int, alpha: float) -> Difference:
    if least_p(each.n_baseline, each.n_candidate) * tests >= alpha:
        words = too_few_text(each.n_baseline, each.n_candidate, tests, alpha)
        return dataclasses.replace(each, words=words, repeats_needed=enough_repeats(tests, alpha))
    significant = each.p_adjusted is None or each.p_adjusted < alpha
    if significant and not ratio.low <= 1 <= ratio.high:
        return dataclasses.replace(each, verdict=_direction(each), words=_change_words(each))
    return dataclasses.replace(each, verdict="same", words=f"no significant difference: {difference_text(each)}")


def _above_floor(found: Difference, floor: float) -> Difference:
    """Replace a significant difference within the noise floor by `same`."""
    if not found.conclusive or found.ratio is None or not is_within_floor(found.ratio.value, floor):
        return found
    return dataclasses.replace(found, verdict="same", words=f"{below_floor_text(floor)}: {difference_text(found)}")


def is_within_floor(ratio: float, floor: float) -> bool:
    """Return whether a ratio is within the noise floor."""
    return ratio > 0 and abs(math.log(ratio)) <= math.log1p(floor)


def below_floor_text(floor: float) -> str:
    """Describe a difference below the noise floor."""
    return f"no more than equal settings differed here, {floor:.0%}"


def _direction(each: Difference) -> Verdict:
    """Return whether a change is better or worse."""
    better = schema.metric(each.metric).better
    if better == "-" or each.ratio is None:
        return "changed"
    return "better" if (each.ratio.value > 1) == (better == "higher") else "worse"


def _change_words(each: Difference) -> str:
    """Describe a change: `faster: 1.12x (1.08 to 1.15)`."""
    if each.ratio is None:
        return ""
    more, less = _WORDS.get(schema.metric(each.metric).unit, ("higher", "lower"))
    return f"{more if each.ratio.value > 1 else less}: {difference_text(each)}"


def difference_text(each: Difference) -> str:
    """Format the ratio with its interval, or the relative change of a quality metric; empty without a ratio."""
    if each.ratio is None:
        return ""
    return comparison_text(each.metric, each.ratio, each.repeated)


def comparison_text(metric: str, ratio: Ratio, interval: bool = True) -> str:
    """Format a ratio in the style of its metric; see `llmtrack.decide.differences`."""
    write = change_text if schema.metric(metric).of_text else ratio_text
    return write(ratio, interval)


def too_few_text(n_baseline: int, n_candidate: int, tests: int, alpha: float = ALPHA, sides: int = 2) -> str:
    """Explain that there are too few repeats for significance, and how many are needed.

    Args:
        tests: number of comparisons.
        alpha: accepted probability of a false alarm.
        sides: 2 for a two-sided test, 1 for one-sided.
    """
    enough = enough_repeats(tests, alpha, sides)
    among = f" among {tests} comparisons" if tests > 1 else ""
    return f"too few repeats{among}, {n_baseline} against {n_candidate}: measure at least {enough} of each"


def enough_repeats(tests: int, alpha: float = ALPHA, sides: int = 2) -> int:
    """Return the repeats of each side needed for significance; see `too_few_text`."""
    return next(
        (n for n in range(2, _MOST_REPEATS_ASKED) if least_p(n, n) * sides / 2 * tests < alpha),
        _MOST_REPEATS_ASKED,
    )


def ratio_text(ratio: Ratio | float, interval: bool = True) -> str:
    """Format a ratio with its interval: `5.8x (4.4 to 7.4)`.

    Args:
        ratio: with an interval, or a plain number.
        interval: whether to show the interval.
    """
    if not isinstance(ratio, Ratio):
        return f"{ratio:,.{_decimals(ratio)}f}x"
    if not interval:
        return ratio_text(ratio.value)
    # Use as many decimals for all three as the smallest needs.
    digits = _decimals(min(ratio.value, ratio.low))
    value, low, high = (f"{each:,.{digits}f}" for each in (ratio.value, ratio.low, ratio.high))
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
    """Return the number of decimals for two significant digits."""
    for least, digits in ((100, 0), (2, 1), (0.1, 2), (0.01, 3)):
        if abs(ratio) >= least:
            return digits
    return 2 if ratio == 0 else 4
