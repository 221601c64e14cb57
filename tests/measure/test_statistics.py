"""Statistics with answers worked out by hand, and their invariants."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.measure.statistics import bootstrap_median_ci, findings, should_stop, summarize, summarize_rate
from llmtrack.spec.task import RepeatPolicy

positive = st.floats(1e-3, 1e3)


def test_summary():
    # 2, 4, 4, 6: median 4, mean 4, squares of the differences 4 + 0 + 0 + 4 over 3 = 2.667
    summary = summarize([2.0, 4.0, 4.0, 6.0])
    assert (summary.n, summary.median, summary.mean) == (4, 4.0, 4.0)
    assert summary.sd == pytest.approx(math.sqrt(8 / 3))
    assert (summary.p90, summary.p99) == (None, None)


def test_one_sample_has_no_spread():
    summary = summarize([3.0])
    assert (summary.median, summary.ci_low, summary.ci_high, summary.sd) == (3.0, 3.0, 3.0, None)


def test_percentiles_need_enough_samples():
    assert summarize([1.0] * 9).p90 is None
    # 1..11: the 90th percentile is the value at position 0.9 x 10 = 9, counted from 0
    assert summarize([float(value) for value in range(1, 12)]).p90 == 10.0
    assert summarize([1.0] * 99).p99 is None
    assert summarize([float(value) for value in range(101)]).p99 == 99.0


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        summarize([])


def test_rates_are_averaged_as_times():
    # 10 and 5 tokens/s are 0.1 and 0.2 s per token: the median time is 0.15 s, 6.667 tokens/s, not 7.5
    summary = summarize_rate([10.0, 5.0])
    assert summary.median == pytest.approx(20 / 3)
    assert summary.mean == pytest.approx(20 / 3)


@pytest.mark.slow(1)
@given(st.lists(positive, min_size=1, max_size=40))
def test_the_interval_contains_the_median_and_stays_within_the_samples(samples):
    summary = summarize(samples)
    assert min(samples) <= summary.ci_low <= summary.median <= summary.ci_high <= max(samples)
    assert bootstrap_median_ci(samples) == (summary.ci_low, summary.ci_high)


@pytest.mark.slow(1)
@given(st.lists(positive, min_size=2, max_size=40), positive)
def test_the_interval_scales_with_the_unit(samples, factor):
    low, high = bootstrap_median_ci(samples)
    scaled = bootstrap_median_ci([factor * sample for sample in samples])
    assert scaled == pytest.approx((factor * low, factor * high))


def test_stops_only_when_repeats_time_and_interval_suffice():
    policy = RepeatPolicy(min_repeats=3, min_seconds=5, max_seconds=100, target_ci=0.05)
    assert not should_stop([4.0, 4.0], policy)  # long enough, too few
    assert not should_stop([1.0, 1.0, 1.0], policy)  # enough repeats, too short
    assert not should_stop([1.0, 2.0, 4.0], policy)  # both, too wide
    assert should_stop([2.0, 2.0, 2.0], policy)


def test_stops_at_the_caps():
    wide = [1.0, 9.0] * 6
    assert should_stop(wide, RepeatPolicy(max_seconds=60))
    assert should_stop([9.0], RepeatPolicy(max_seconds=5))
    assert should_stop([0.001] * 7, RepeatPolicy(max_repeats=7))


def test_steady_repeats_give_no_warning():
    assert findings([1.0, 1.01, 0.99, 1.0, 1.02, 0.98], RepeatPolicy()) == ()


def test_noise_is_reported():
    (warning,) = findings([1.0, 1.4, 1.0, 1.4, 1.0, 1.4], RepeatPolicy())
    assert "noisy: repeats vary by 18%" in warning


def test_drift_is_reported_with_its_direction():
    warnings = findings([1.0, 1.01, 1.02, 1.2, 1.22, 1.25, 1.4, 1.41, 1.42], RepeatPolicy())
    assert any("the last repeats took 40% more time" in warning for warning in warnings)


@pytest.mark.parametrize(
    "durations",
    [
        [1.0, 1.05, 1.1, 1.15, 1.2],
        [1.2, 1.15, 1.1, 1.05, 1.0],
        [1.0, 1.02, 1.1, 1.19, 1.17],
        [1.0, 1.0, 1.2, 1.2],
        [1.0, 1.01, 1.02, 1.18, 1.2, 1.21],
    ],
)
def test_drift_is_reported_from_four_repeats(durations):
    assert any("drift" in warning for warning in findings(durations, RepeatPolicy(min_repeats=len(durations))))


@pytest.mark.parametrize(
    "durations", [[1.0, 1.15, 1.05, 1.01, 1.14], [1.0, 1.2], [1.0, 1.1, 1.2], [1.0, 1.05, 1.0, 1.06, 1.04]]
)
def test_unordered_or_too_few_repeats_are_no_drift(durations):
    assert not any("drift" in warning for warning in findings(durations, RepeatPolicy(min_repeats=2)))


def test_a_slow_first_repeat_alone_is_no_drift():
    assert not any("drift" in warning for warning in findings([1.5, 1.01, 1.0, 1.0, 0.99], RepeatPolicy()))


def test_a_single_repeat_gives_a_warning():
    (warm,) = findings([1.0], RepeatPolicy(warmup=1, min_repeats=1))
    assert "a single repeat" in warm
    assert "raise min_repeats" in warm
    (cold,) = findings([1.0], RepeatPolicy(warmup=0, min_repeats=1))
    assert "there was no warm-up" in cold


@pytest.mark.parametrize("durations", [[1.3, 1.0], [1.3, 1.0, 1.0]])
def test_without_a_warmup_two_repeats_show_a_slow_first_one(durations):
    warnings = findings(durations, RepeatPolicy(warmup=0, min_repeats=2))
    assert any("the first repeat took 1.3x" in warning and "there was no warm-up" in warning for warning in warnings)


def test_a_slow_first_repeat_is_reported():
    assert any(
        "the first repeat took 3.0x" in warning for warning in findings([3.0, 1.0, 1.0, 1.0, 1.0], RepeatPolicy())
    )
