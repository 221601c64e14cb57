"""Verdicts: an arm against itself is called different no more often than promised, a real slowdown is found."""

from __future__ import annotations

import numpy as np
import pytest

from llmtrack.decide.differences import difference, judge
from llmtrack.decide.significance import holm, mann_whitney_p

COMPARISONS = 200


def latencies(generator: np.random.Generator, n: int, median: float = 0.5) -> list[float]:
    """Simulate timings of a call on a machine without drift: skewed noise of 2 %, with occasional hiccups."""
    noise = generator.lognormal(0, 0.02, size=n)
    hiccups = np.where(generator.random(n) < 0.05, generator.uniform(1.05, 1.5, size=n), 1.0)
    return list(median * noise * hiccups)


def compared(baseline, candidate, metric="total_latency_s"):
    return difference(metric, float(np.median(baseline)), float(np.median(candidate)), baseline, candidate)


def self_comparisons(n):
    generator = np.random.default_rng(2026)
    return [compared(latencies(generator, n), latencies(generator, n)) for _ in range(COMPARISONS)]


@pytest.mark.slow(1)
@pytest.mark.parametrize("n", [5, 8, 20])
def test_an_arm_against_itself_is_rarely_called_different(n):
    pairs = self_comparisons(n)
    alone = [judge([each])[0].verdict for each in pairs]
    assert alone.count("same") >= COMPARISONS * 0.95


@pytest.mark.slow(1)
def test_corrected_a_whole_family_is_rarely_called_different():
    generator = np.random.default_rng(2026)
    alarms = 0
    for _ in range(COMPARISONS):
        family = [mann_whitney_p(latencies(generator, 10), latencies(generator, 10)) for _ in range(COMPARISONS // 20)]
        alarms += min(holm(family)) < 0.05
    # 5 % of 200 families are 10; more than 16 would be a chance of 1 in 50.
    assert alarms <= 16


@pytest.mark.slow(1)
@pytest.mark.parametrize(("n", "power"), [(5, 0.75), (8, 0.95), (20, 0.99)])
def test_a_slowdown_of_ten_percent_is_found(n, power):
    generator = np.random.default_rng(7)
    pairs = [compared(latencies(generator, n), latencies(generator, n, 0.55)) for _ in range(COMPARISONS)]
    verdicts = [judge([each])[0].verdict for each in pairs]
    assert verdicts.count("worse") >= COMPARISONS * power
    assert verdicts.count("better") == 0


def test_three_repeats_are_said_to_be_too_few():
    (found,) = judge([compared([1.0, 1.01, 1.02], [2.0, 2.01, 2.02])])
    assert found.verdict == "unknown"
    assert found.words == "too few repeats, 3 against 3: measure at least 4 of each"


def test_many_comparisons_need_more_repeats():
    one = compared([1.0, 1.01, 1.02, 1.03, 1.04], [2.0, 2.01, 2.02, 2.03, 2.04])
    assert judge([one])[0].verdict == "worse"
    found = judge([one] * 8)
    # 8 x 2/252 = 0.063; with six of each it is 8 x 2/924 = 0.017.
    assert {each.words for each in found} == {
        "too few repeats among 8 comparisons, 5 against 5: measure at least 6 of each"
    }


def test_a_change_in_words():
    slow, fast = [10.0] * 6, [11.2] * 6
    (up,) = judge([compared(slow, fast, "tokens_per_sec")])
    assert (up.verdict, up.words) == ("better", "faster: 1.12x (1.12 to 1.12)")
    (down,) = judge([compared(fast, slow, "tokens_per_sec")])
    assert (down.verdict, down.words) == ("worse", "slower: 0.89x (0.89 to 0.89)")
    (longer,) = judge([compared(slow, fast, "total_latency_s")])
    assert (longer.verdict, longer.words) == ("worse", "longer: 1.12x (1.12 to 1.12)")
    (same,) = judge([compared(slow, slow)])
    assert (same.verdict, same.words) == ("same", "no significant difference: 1.00x (1.00 to 1.00)")
    assert (same.p_value, same.p_adjusted, same.n_baseline) == (1.0, 1.0, 6)


def test_the_ratio_of_a_rate_is_that_of_its_headline_values():
    # Four repeats: the median of rates is not the rate at the median time.
    times, other = [1.0, 1.0, 2.0, 4.0], [2.0, 2.0, 2.0, 2.0]
    found = difference("tokens_per_sec", 1 / 1.5, 1 / 2, [1 / t for t in times], [1 / t for t in other])
    assert found.ratio.value == pytest.approx(1.5 / 2)


@pytest.mark.parametrize(
    ("metric", "baseline", "candidate", "verdict", "words"),
    [
        ("perplexity", 20.0, 20.01, "same", "no difference beyond 0.1 %"),
        ("perplexity", 20.0, 21.0, "worse", "higher: +5 %"),
        ("perplexity", 20.0, 19.0, "better", "lower: -5 %"),
        ("peak_memory_mib", 1000, 1019, "same", "no difference beyond 2.0 %"),
        ("peak_memory_mib", 1000, 1100, "worse", "higher: 1.10x"),
        ("model_size_mib", 100, 100, "same", "no difference"),
        ("tokens_scored", 100, 110, "changed", "higher: +10 %"),
        ("load_time_s", 1.0, 1.5, "unknown", "1.50x, one value each: noise unknown"),
        ("tokens_per_sec", 1.0, 1.5, "unknown", "1.50x, one value each: noise unknown"),
        ("something_else", 1.0, 1.5, "unknown", "1.50x, one value each: noise unknown"),
        ("pad_share", 0.0, 0.5, "unknown", "the baseline is 0: no ratio"),
    ],
)
def test_metrics_without_repeats(metric, baseline, candidate, verdict, words):
    (found,) = judge([difference(metric, baseline, candidate)])
    assert (found.verdict, found.words, found.p_value) == (verdict, words, None)
