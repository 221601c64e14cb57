"""Difference of one metric between two runs: ratio, significance and wording."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.significance import ALPHA, Ratio, holm, least_p, mann_whitney_p, ratio_of_medians
from llmtrack.decide.wording import change_text, ratio_text
from llmtrack.tracked.run import Spread

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


def judge(differences: Sequence[Difference], alpha: float = ALPHA, among: int = 1) -> list[Difference]:
    """Add verdicts to differences of one metric, with p-values corrected for multiple comparisons.

    A difference is significant if its adjusted p-value is below alpha and its interval excludes 1; without raw samples,
    if there were enough repeats for such a p-value and the tracked intervals are disjoint. Deterministic metrics
    (quality, sizes) have no noise: a change beyond the metric's tolerance is a difference.

    Args:
        alpha: accepted probability of a false alarm over all of them.
        among: total number of comparisons, if there are more than these.
    """
    tests = max(among, sum(each.repeated for each in differences))
    p_values = [each.p_value for each in differences if each.p_value is not None]
    adjusted = iter(holm([*p_values, *[1.0] * (tests - len(p_values))]))
    judged = []
    for each in differences:
        corrected = next(adjusted) if each.p_value is not None else None
        judged.append(_judged(dataclasses.replace(each, p_adjusted=corrected), tests, alpha))
    return judged


def _judged(each: Difference, tests: int, alpha: float) -> Difference:
    entry = schema.metric(each.metric)
    if each.ratio is None:
        zero = "the baseline is 0: no ratio" if each.baseline == 0 else "a value is below 0: no ratio"
        return dataclasses.replace(each, words=zero)
    if each.repeated:
        return _judged_by_repeats(each, each.ratio, tests, alpha)
    if entry.sureness != "exact":
        words = f"{in_figures(each)}, one value each: noise unknown"
        needed = enough_repeats(tests, alpha) if entry.sureness == "sampled" else 0
        return dataclasses.replace(each, words=words, repeats_needed=needed)
    if abs(each.ratio.value - 1) <= entry.tolerance:
        beyond = f" beyond {entry.tolerance:.1%}".replace("%", " %") if entry.tolerance else ""
        words = f"no difference{beyond}"
        return dataclasses.replace(each, verdict="same", words=words)
    return dataclasses.replace(each, verdict=direction(each), words=change_in_words(each))


def _judged_by_repeats(each: Difference, ratio: Ratio, tests: int, alpha: float) -> Difference:
    if least_p(each.n_baseline, each.n_candidate) * tests >= alpha:
        words = too_few(each.n_baseline, each.n_candidate, tests, alpha)
        return dataclasses.replace(each, words=words, repeats_needed=enough_repeats(tests, alpha))
    significant = each.p_adjusted is None or each.p_adjusted < alpha
    if significant and not ratio.low <= 1 <= ratio.high:
        return dataclasses.replace(each, verdict=direction(each), words=change_in_words(each))
    return dataclasses.replace(each, verdict="same", words=f"no significant difference: {in_figures(each)}")


def direction(each: Difference) -> Verdict:
    """Return whether a change is better or worse."""
    better = schema.metric(each.metric).better
    if better == "-" or each.ratio is None:
        return "changed"
    return "better" if (each.ratio.value > 1) == (better == "higher") else "worse"


def change_in_words(each: Difference) -> str:
    """Describe a change: `faster: 1.12x (1.08 to 1.15)`."""
    if each.ratio is None:
        return ""
    more, less = _WORDS.get(schema.metric(each.metric).unit, ("higher", "lower"))
    return f"{more if each.ratio.value > 1 else less}: {in_figures(each)}"


def in_figures(each: Difference) -> str:
    """Format the ratio with its interval, or the relative change of a quality metric; empty without a ratio."""
    if each.ratio is None:
        return ""
    return comparison_text(each.metric, each.ratio, each.repeated)


def comparison_text(metric: str, ratio: Ratio, interval: bool = True) -> str:
    """Format a ratio in the style of its metric; see `llmtrack.decide.wording`."""
    write = change_text if schema.metric(metric).of_text else ratio_text
    return write(ratio, interval)


def too_few(n_baseline: int, n_candidate: int, tests: int, alpha: float = ALPHA, sides: int = 2) -> str:
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
    """Return the repeats of each side needed for significance; see `too_few`."""
    return next(
        (n for n in range(2, _MOST_REPEATS_ASKED) if least_p(n, n) * sides / 2 * tests < alpha),
        _MOST_REPEATS_ASKED,
    )
