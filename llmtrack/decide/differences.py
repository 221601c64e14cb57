"""One metric of two runs side by side: how far apart they are, whether that is noise, and both in words."""

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
# Unit to the words for more and for less of it.
_WORDS = {"tokens/s": ("faster", "slower"), "s": ("longer", "shorter"), "ms": ("longer", "shorter")}


@dataclass(frozen=True)
class Difference:
    """One metric of a candidate against a baseline.

    Attributes:
        metric: its name.
        baseline: headline value of the baseline, in the metric's unit.
        candidate: headline value of the candidate.
        ratio: candidate over baseline; with a 95 % bootstrap interval where there are raw samples, or else the widest
            that the tracked intervals of both medians allow; without either, both ends are the value. None where a value
            is not above 0.
        n_baseline: repeats of the baseline; 1 where it is one value.
        n_candidate: repeats of the candidate.
        p_value: of the Mann-Whitney test, two-sided; None without raw samples.
        p_adjusted: corrected for how many were compared (Holm).
        verdict: `better`, `worse`, `changed` (neither direction is better), `same`, `unknown` (it cannot be told), or why
            nothing is compared: `not comparable`, `failed`, `missing`.
        words: the verdict in words.
        doubts: the warnings that either run carries itself, with the run's name.
        repeats_needed: repeats of each side that could tell, where there are too few; else 0.
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
        """The words without what to do, for a sentence that says that itself."""
        return self.words.partition(": measure at least")[0]

    @property
    def repeated(self) -> bool:
        """Whether a side was repeated, so that noise is known."""
        return max(self.n_baseline, self.n_candidate) > 1

    @property
    def told(self) -> bool:
        """Whether the two are known to differ."""
        return self.verdict in ("better", "worse", "changed")


def difference(
    metric: str,
    baseline: float,
    candidate: float,
    baseline_samples: Sequence[float] = (),
    candidate_samples: Sequence[float] = (),
    spreads: tuple[Spread, Spread] | None = None,
) -> Difference:
    """Return a metric's difference, not judged yet: see `judge`.

    Args:
        metric: its name.
        baseline: headline value.
        candidate: headline value.
        baseline_samples: raw samples, if there are.
        candidate_samples: raw samples, if there are.
        spreads: of both, for want of raw samples.
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
    """Return candidate over baseline; of a rate through the times, as its headline value is."""
    if schema.metric(metric).rate:
        return ratio_of_medians([1 / rate for rate in candidate], [1 / rate for rate in baseline])
    return ratio_of_medians(baseline, candidate)


def judge(differences: Sequence[Difference], alpha: float = ALPHA, among: int = 1) -> list[Difference]:
    """Return differences of one metric with their verdicts, the p-values corrected for being several.

    Different is what has an adjusted p-value below alpha and an interval without 1; without raw samples, what was repeated
    often enough for such a p-value and has tracked intervals apart. Metrics that would be the same again (quality,
    sizes) have no noise: different is what changes by more than the metric's tolerance.

    Args:
        differences: of one metric.
        alpha: chance of a false alarm that is accepted, over all of them together.
        among: how many are compared in all, where these are not all.
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
    """Return whether a change is for better or worse."""
    better = schema.metric(each.metric).better
    if better == "-" or each.ratio is None:
        return "changed"
    return "better" if (each.ratio.value > 1) == (better == "higher") else "worse"


def change_in_words(each: Difference) -> str:
    """Return a change in words: `faster: 1.12x (1.08 to 1.15)`."""
    if each.ratio is None:
        return ""
    more, less = _WORDS.get(schema.metric(each.metric).unit, ("higher", "lower"))
    return f"{more if each.ratio.value > 1 else less}: {in_figures(each)}"


def in_figures(each: Difference) -> str:
    """Return the ratio of the two with its interval, or the difference where the metric is of quality; empty if there is none."""
    if each.ratio is None:
        return ""
    return comparison_text(each.metric, each.ratio, each.repeated)


def comparison_text(metric: str, ratio: Ratio, interval: bool = True) -> str:
    """Return a ratio in a metric as it is written of this metric; see `llmtrack.decide.wording`."""
    write = change_text if schema.metric(metric).of_text else ratio_text
    return write(ratio, interval)


def too_few(n_baseline: int, n_candidate: int, tests: int, alpha: float = ALPHA, sides: int = 2) -> str:
    """Say that so few repeats can show nothing, and how many can.

    Args:
        n_baseline: samples of the baseline.
        n_candidate: samples of the candidate.
        tests: how many are compared.
        alpha: chance of a false alarm that is accepted.
        sides: 2 for a change in either direction, 1 for one.
    """
    enough = enough_repeats(tests, alpha, sides)
    among = f" among {tests} comparisons" if tests > 1 else ""
    return f"too few repeats to tell{among}, {n_baseline} against {n_candidate}: measure at least {enough} of each"


def enough_repeats(tests: int, alpha: float = ALPHA, sides: int = 2) -> int:
    """Return how many repeats of each side could tell a difference; see `too_few`."""
    return next(
        (n for n in range(2, _MOST_REPEATS_ASKED) if least_p(n, n) * sides / 2 * tests < alpha),
        _MOST_REPEATS_ASKED,
    )
