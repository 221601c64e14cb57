"""Statistics over the repeats of a measurement, and warnings about their quality."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmtrack.spec.outcome import Summary
from llmtrack.spec.task import RepeatPolicy

BOOTSTRAP_RESAMPLES = 2000

NOISY_CV = 0.10
"""Coefficient of variation above which repeats are noisy."""

DRIFT = 0.10
"""Relative change from the first to the last repeats above which they drift."""

_NOT_WARM = "there was no warm-up, so it includes first-call overhead: raise warmup"


def bootstrap_median_ci(samples: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % percentile bootstrap interval of the median; deterministic.

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
    """Summarize the samples of a time, a size or a count; at least one."""
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

    A rate is work over time, and the work is the same in each repeat: only times may be averaged. This also keeps the
    headline numbers consistent: tokens/s is tokens over the median latency, also for an even number of repeats.
    Percentiles count from the fast side: 90 % of the repeats were at least as fast as p90.
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
    """Decide after a counted repeat whether to stop.

    The time cap is kept by looking ahead: a repeat only starts if it would finish in time when as slow as the slowest
    known one. The first is always made.

    Args:
        durations: seconds of the counted repeats so far, at least one.
        warmup_s: seconds of the last warm-up, used until a second repeat is known, since a shape's first call may be
            slow; None if there was none.
    """
    elapsed = math.fsum(durations)
    references = durations if len(durations) > 1 or warmup_s is None else (*durations, warmup_s)
    if len(durations) >= policy.max_repeats or elapsed + max(references) > policy.max_seconds:
        return True
    if len(durations) < policy.min_repeats or elapsed < policy.min_seconds:
        return False
    if math.isinf(policy.target_ci):
        return True
    low, high = bootstrap_median_ci(durations)
    return (high - low) / 2 <= policy.target_ci * float(np.median(durations))


def findings(durations: Sequence[float], policy: RepeatPolicy) -> tuple[str, ...]:
    """Return warnings about the durations (in seconds) of the counted repeats."""
    values = np.asarray(durations, dtype=np.float64)
    warnings = []
    if len(values) < policy.min_repeats:
        warnings.append(
            f"only {len(values)} of {policy.min_repeats} repeats fit into {policy.max_seconds:g} s: "
            "raise max_seconds or generate fewer tokens"
        )
    if len(values) == 1:
        unknown = "a single repeat: its variation is unknown"
        warnings.append(f"{unknown}: raise min_repeats" if policy.warmup else f"{unknown}, and {_NOT_WARM}")
        return tuple(warnings)
    variation = values.std(ddof=1) / values.mean()
    if variation > NOISY_CV:
        warnings.append(
            f"noisy: repeats vary by {variation:.0%} (coefficient of variation): close other programs or raise repeats"
        )
    rest = float(np.median(values[1:]))
    # Without a warm-up a slow first repeat is expected, so that two repeats suffice as evidence.
    if values[0] > 1.2 * rest and (not policy.warmup or (len(values) >= 4 and variation > DRIFT)):
        slow = f"the first repeat took {values[0] / rest:.1f}x as long as the others"
        warnings.append(f"{slow}: raise warmup" if policy.warmup else f"{slow}: {_NOT_WARM}")
        values = values[1:]
    change = drift(values.tolist())
    if abs(change) > DRIFT:
        warnings.append(
            f"drift: the last repeats took {abs(change):.0%} {'more' if change > 0 else 'less'} time than the first: "
            "check the cooling and the clock speed, or raise warmup"
        )
    return tuple(warnings)


def disturbed(durations: Sequence[float]) -> bool:
    """Return whether the repeats vary or drift so much that other runs should not be compared with them."""
    values = np.asarray(durations, dtype=np.float64)
    if len(values) < 2:
        return False
    return bool(values.std(ddof=1) / values.mean() > NOISY_CV or abs(drift(durations)) > DRIFT)


def drift(durations: Sequence[float]) -> float:
    """Return the relative change from the first to the last repeats (0.2: 20 % slower), 0 if not significant.

    The outer thirds of the repeats are compared, at least two each. With only two, each late one must lie beyond each
    early one; with more, the change must exceed the uncertainty of the median.

    Args:
        durations: seconds of the repeats, in order.
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
