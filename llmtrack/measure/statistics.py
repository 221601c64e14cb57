"""Statistics over the repeats of a measurement, and findings in words about their quality."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmtrack.spec.outcome import Summary
from llmtrack.spec.task import RepeatPolicy

BOOTSTRAP_RESAMPLES = 2000
NOISY_CV = 0.10
DRIFT = 0.10


def bootstrap_median_ci(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the median, the same for the same samples.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) == 1:
        return float(values[0]), float(values[0])
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(values), size=(BOOTSTRAP_RESAMPLES, len(values)))
    medians = np.median(values[picks], axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


def summarize(samples: Sequence[float]) -> Summary:
    """Summarize the samples of a time, a size or a count.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("no samples to summarize")
    values = np.asarray(samples, dtype=np.float64)
    low, high = bootstrap_median_ci(samples)
    return Summary(
        n=len(values),
        median=float(np.median(values)),
        ci_low=low,
        ci_high=high,
        mean=float(values.mean()),
        sd=float(values.std(ddof=1)) if len(values) > 1 else None,
        p90=float(np.percentile(values, 90)) if len(values) >= 10 else None,
        p99=float(np.percentile(values, 99)) if len(values) >= 100 else None,
    )


def summarize_rate(samples: Sequence[float]) -> Summary:
    """Summarize the samples of a rate (tokens/s) through the time per token.

    A rate is work over time and the work is the same in each repeat: only the times may be averaged. This
    also keeps the headline numbers consistent: tokens/s is tokens over the median latency, for an even
    number of repeats too. The percentiles are of the slow side: 90 % of the repeats were at least as fast
    as p90.

    Raises:
        ValueError: there are no samples.
    """
    times = summarize([1 / rate for rate in samples])
    return Summary(
        n=times.n,
        median=1 / times.median,
        ci_low=1 / times.ci_high,
        ci_high=1 / times.ci_low,
        mean=1 / times.mean,
        sd=float(np.std(samples, ddof=1)) if len(samples) > 1 else None,
        p90=1 / times.p90 if times.p90 is not None else None,
        p99=1 / times.p99 if times.p99 is not None else None,
    )


def should_stop(durations: Sequence[float], policy: RepeatPolicy, warmup_s: float | None = None) -> bool:
    """Decide after each counted repeat whether to stop.

    The cap on time is kept by looking ahead: no repeat starts that would end beyond it if it took as long as the
    longest known one. The first is always made.

    Args:
        durations: seconds of the counted repeats so far, one at least.
        policy: least repeats, least time, cap on time, and how narrow the interval must be.
        warmup_s: seconds of the last warm-up; what it says counts until a second repeat is known, since a first
            call of a shape may be slow. None: there was none.
    """
    elapsed = math.fsum(durations)
    known = durations if len(durations) > 1 or warmup_s is None else (*durations, warmup_s)
    if len(durations) >= policy.max_repeats or elapsed + max(known) > policy.max_seconds:
        return True
    if len(durations) < policy.min_repeats or elapsed < policy.min_seconds:
        return False
    if math.isinf(policy.target_ci):
        return True
    low, high = bootstrap_median_ci(durations)
    return (high - low) / 2 <= policy.target_ci * float(np.median(durations))


def findings(durations: Sequence[float], policy: RepeatPolicy) -> tuple[str, ...]:
    """Say in words what is doubtful about the durations of the counted repeats, in seconds."""
    values = np.asarray(durations, dtype=np.float64)
    found = []
    if len(values) < policy.min_repeats:
        found.append(
            f"only {len(values)} of {policy.min_repeats} repeats fit into {policy.max_seconds:g} s: "
            "raise max_seconds or generate fewer tokens"
        )
    if len(values) == 1:
        once = "a single repeat: how much it varies is not known"
        found.append(f"{once}: raise min_repeats" if policy.warmup else f"{once}, and {_NOT_WARM}")
        return tuple(found)
    variation = values.std(ddof=1) / values.mean()
    if variation > NOISY_CV:
        found.append(
            f"noisy: repeats vary by {variation:.0%} (coefficient of variation): close other programs or raise repeats"
        )
    rest = float(np.median(values[1:]))
    # Without a warm-up a slow first repeat is what is to be expected, so that two repeats show it.
    if values[0] > 1.2 * rest and (not policy.warmup or (len(values) >= 4 and variation > DRIFT)):
        slow = f"the first repeat took {values[0] / rest:.1f}x as long as the others"
        found.append(f"{slow}: raise warmup" if policy.warmup else f"{slow}: {_NOT_WARM}")
        values = values[1:]
    change = drift(values.tolist())
    if abs(change) > DRIFT:
        found.append(
            f"drift: the last repeats took {abs(change):.0%} {'more' if change > 0 else 'less'} time than the first: "
            "check the cooling and the clock speed, or raise warmup"
        )
    return tuple(found)


def disturbed(durations: Sequence[float]) -> bool:
    """Return whether the durations of the repeats vary or drift so much that nothing should be compared with them."""
    values = np.asarray(durations, dtype=np.float64)
    if len(values) < 2:
        return False
    return bool(values.std(ddof=1) / values.mean() > NOISY_CV or abs(drift(durations)) > DRIFT)


_NOT_WARM = "nothing was warmed up, so that it holds what only a first call costs: raise warmup"


def drift(durations: Sequence[float]) -> float:
    """Return by which share the last repeats took longer than the first (0.2: 20 % longer), 0 where that cannot be told.

    The ends are compared: a third of the repeats each, two at least. Of the few that have two, each late one must
    lie beyond each early one; of more, the change must be wider than the median is uncertain.

    Args:
        durations: seconds of the repeats, in the order they were made.
    """
    values = np.asarray(durations, dtype=np.float64)
    if len(values) < 4:
        return 0.0
    end = max(2, len(values) // 3)
    first, last = values[:end], values[-end:]
    change = float(np.median(last) / np.median(first)) - 1
    if end == 2:
        return change if last.min() > first.max() or last.max() < first.min() else 0.0
    low, high = bootstrap_median_ci(durations)
    return change if abs(change) * float(np.median(values)) > (high - low) / 2 else 0.0
