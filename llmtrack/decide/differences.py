"""Difference of one metric between two runs: ratio, verdict and wording.

All comparisons are formatted here, alike: a ratio as `5.8x (4.4 to 7.4)`, a quality difference as
`+0.52 % (0.3 to 0.8)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.significance import ALPHA, Ratio, enough_repeats, least_p, mann_whitney_p, ratio_of_medians
from llmtrack.tracked.run import Spread

Verdict = Literal["better", "worse", "changed", "same", "unknown", "not comparable", "failed", "missing"]

# Unit to the words for more and less of it.
_WORDS = {"tokens/s": ("faster", "slower"), "s": ("longer", "shorter"), "ms": ("longer", "shorter")}


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
        p_adjusted: corrected for multiple comparisons (Bonferroni).
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
    if baseline_samples and candidate_samples and min(*baseline_samples, *candidate_samples) > 0:
        return Difference(
            metric,
            baseline,
            candidate,
            sampled_ratio(metric, baseline_samples, candidate_samples),
            len(baseline_samples),
            len(candidate_samples),
            mann_whitney_p(baseline_samples, candidate_samples),
        )
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


def judge(difference: Difference, alpha: float = ALPHA, among: int = 1, floor: float = 0.0) -> Difference:
    """Add the verdict to a difference, with its p-value corrected for multiple comparisons.

    A difference is significant if its adjusted p-value is below alpha and its interval excludes 1; without raw samples,
    if there were enough repeats for such a p-value and the tracked intervals are disjoint. Deterministic metrics
    (quality, sizes) have no noise: a change beyond the metric's tolerance is a difference.

    Args:
        alpha: accepted probability of a false alarm over all comparisons.
        among: number of comparisons that this is one of.
        floor: noise floor as a share; a difference within it is not significant.
    """
    if difference.p_value is not None:
        difference = replace(difference, p_adjusted=min(1.0, among * difference.p_value))
    judged = _judge_regardless_of_floor(difference, among, alpha)
    if not judged.conclusive or judged.ratio is None or not is_within_floor(judged.ratio.value, floor):
        return judged
    return replace(judged, verdict="same", words=f"{below_floor_text(floor)}: {difference_text(judged)}")


def _judge_regardless_of_floor(difference: Difference, tests: int, alpha: float) -> Difference:
    entry = schema.metric(difference.metric)
    if difference.ratio is None:
        words = "the baseline is 0: no ratio" if difference.baseline == 0 else "a value is below 0: no ratio"
        return replace(difference, words=words)
    if difference.repeated:
        return _judge_repeats(difference, difference.ratio, tests, alpha)
    if entry.sureness != "exact":
        words = f"{difference_text(difference)}, one value each: noise unknown"
        needed = enough_repeats(tests, alpha) if entry.sureness == "sampled" else 0
        return replace(difference, words=words, repeats_needed=needed)
    if abs(difference.ratio.value - 1) <= entry.tolerance:
        tolerance = f" beyond {100 * entry.tolerance:.1f} %" if entry.tolerance else ""
        return replace(difference, verdict="same", words=f"no difference{tolerance}")
    return with_direction(difference, difference.ratio)


def _judge_repeats(difference: Difference, ratio: Ratio, tests: int, alpha: float) -> Difference:
    sizes = difference.n_baseline, difference.n_candidate
    if least_p(*sizes) * tests >= alpha:
        words = too_few_text(*sizes, tests, alpha)
        return replace(difference, words=words, repeats_needed=enough_repeats(tests, alpha))
    significant = difference.p_adjusted is None or difference.p_adjusted < alpha
    if significant and not ratio.low <= 1 <= ratio.high:
        return with_direction(difference, ratio)
    words = f"no significant difference: {difference_text(difference)}"
    return replace(difference, verdict="same", words=words)


def with_direction(difference: Difference, ratio: Ratio) -> Difference:
    """Add the verdict of a significant change, in words such as `faster: 1.12x (1.08 to 1.15)`."""
    entry = schema.metric(difference.metric)
    more, less = _WORDS.get(entry.unit, ("higher", "lower"))
    verdict: Verdict = "changed"
    if entry.better != "-":
        verdict = "better" if (ratio.value > 1) == (entry.better == "higher") else "worse"
    words = f"{more if ratio.value > 1 else less}: {difference_text(difference)}"
    return replace(difference, verdict=verdict, words=words)


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
