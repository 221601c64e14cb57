"""Statistics over the repeats of a measurement, and findings in words about their quality."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmtrack.scenario import RepeatPolicy, Summary

BOOTSTRAP_RESAMPLES = 2000
NOISY_CV = 0.10
DRIFT = 0.10


def bootstrap_median_ci(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median, the same for the same samples.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapter 13.
    """
    values = np.asarray(samples, dtype=np.float64)
    if len(values) == 1:
        return float(values[0]), float(values[0])
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(values), size=(BOOTSTRAP_RESAMPLES, len(values)))
    medians = np.median(values[picks], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(medians, [tail, 100 - tail])
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


def should_stop(durations: Sequence[float], policy: RepeatPolicy) -> bool:
    """Decide after each counted call whether to stop repeating.

    Args:
        durations: seconds of the counted calls so far.
        policy: least repeats, least time, cap on time, and how narrow the interval must be.
    """
    elapsed = math.fsum(durations)
    if len(durations) >= policy.max_repeats or elapsed >= policy.max_seconds:
        return True
    if len(durations) < policy.min_repeats or elapsed < policy.min_seconds:
        return False
    low, high = bootstrap_median_ci(durations)
    return (high - low) / 2 <= policy.target_ci * float(np.median(durations))


def findings(durations: Sequence[float], policy: RepeatPolicy) -> tuple[str, ...]:
    """Say in words what is doubtful about the durations of the counted calls, in seconds."""
    values = np.asarray(durations, dtype=np.float64)
    found = []
    if len(values) < policy.min_repeats:
        found.append(
            f"only {len(values)} of {policy.min_repeats} repeats fit into {policy.max_seconds:g} s: "
            "raise max_seconds or generate fewer tokens"
        )
    if len(values) < 2:
        return tuple(found)
    variation = values.std(ddof=1) / values.mean()
    if variation > NOISY_CV:
        found.append(
            f"noisy: repeats vary by {variation:.0%} (coefficient of variation): close other programs or raise repeats"
        )
    rest = float(np.median(values[1:]))
    if len(values) >= 4 and values[0] > 1.2 * rest and variation > DRIFT:
        found.append(f"the first repeat took {values[0] / rest:.1f}x as long as the others: raise warmup")
    if len(values) >= 6:
        third = len(values) // 3
        change = float(np.median(values[-third:]) / np.median(values[:third])) - 1
        low, high = bootstrap_median_ci(durations)
        if abs(change) > DRIFT and abs(change) * float(np.median(values)) > (high - low) / 2:
            found.append(
                f"drift: the last repeats took {abs(change):.0%} {'more' if change > 0 else 'less'} time than the first: "
                "check the cooling and the clock speed, or raise warmup"
            )
    return tuple(found)
