"""Differences: equals are called different no more often than promised, a real slowdown is found."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from llmtrack.decide.differences import build_difference, change_text, is_within_floor, judge, ratio_text
from llmtrack.decide.significance import Ratio, holm, mann_whitney_p

COMPARISONS = 200


def latencies(generator: np.random.Generator, n: int, median: float = 0.5) -> list[float]:
    """Simulate timings of a call on a machine without drift: skewed noise of 2 %, with occasional hiccups."""
    noise = generator.lognormal(0, 0.02, size=n)
    hiccups = np.where(generator.random(n) < 0.05, generator.uniform(1.05, 1.5, size=n), 1.0)
    return list(median * noise * hiccups)


def compared(baseline, candidate, metric="total_latency_s"):
    return build_difference(metric, float(np.median(baseline)), float(np.median(candidate)), baseline, candidate)


@pytest.mark.slow(1)
@pytest.mark.parametrize(("n", "power"), [(5, 0.75), (8, 0.95), (20, 0.99)])
def test_an_arm_against_itself_is_rarely_called_different_and_a_slowdown_of_ten_percent_is_found(n, power):
    generator, another = np.random.default_rng(7), np.random.default_rng(2026)
    against_itself, against_slower = [], []
    for _ in range(COMPARISONS):
        baseline = latencies(generator, n)
        against_slower.append(judge(compared(baseline, latencies(generator, n, 0.55))).verdict)
        against_itself.append(judge(compared(baseline, latencies(another, n))).verdict)
    assert against_itself.count("same") >= COMPARISONS * 0.95
    assert against_slower.count("worse") >= COMPARISONS * power
    assert against_slower.count("better") == 0


@pytest.mark.slow(1)
def test_a_corrected_family_of_equals_is_rarely_called_different():
    generator = np.random.default_rng(2026)
    alarms = 0
    for _ in range(COMPARISONS):
        family = [mann_whitney_p(latencies(generator, 10), latencies(generator, 10)) for _ in range(COMPARISONS // 20)]
        alarms += min(holm(family)) < 0.05
    # 5 % of 200 families are 10; more than 16 would be a chance of 1 in 50.
    assert alarms <= 16


def test_three_repeats_are_too_few():
    result = judge(compared([1.0, 1.01, 1.02], [2.0, 2.01, 2.02]))
    assert result.verdict == "unknown"
    assert result.words == "too few repeats, 3 against 3: measure at least 4 of each"


def test_many_comparisons_need_more_repeats():
    difference = compared([1.0, 1.01, 1.02, 1.03, 1.04], [2.0, 2.01, 2.02, 2.03, 2.04])
    assert judge(difference).verdict == "worse"
    # 8 x 2/252 = 0.063; with six of each it is 8 x 2/924 = 0.017.
    words = "too few repeats among 8 comparisons, 5 against 5: measure at least 6 of each"
    assert judge(difference, among=8).words == words


def test_a_change_in_words():
    slow, fast = [10.0] * 6, [11.2] * 6
    up = judge(compared(slow, fast, "tokens_per_sec"))
    assert (up.verdict, up.words) == ("better", "faster: 1.12x (1.12 to 1.12)")
    down = judge(compared(fast, slow, "tokens_per_sec"))
    assert (down.verdict, down.words) == ("worse", "slower: 0.89x (0.89 to 0.89)")
    longer = judge(compared(slow, fast, "total_latency_s"))
    assert (longer.verdict, longer.words) == ("worse", "longer: 1.12x (1.12 to 1.12)")
    same = judge(compared(slow, slow))
    assert (same.verdict, same.words) == ("same", "no significant difference: 1.00x (1.00 to 1.00)")
    assert (same.p_value, same.p_adjusted, same.n_baseline) == (1.0, 1.0, 6)


def test_the_ratio_of_a_rate_is_that_of_its_headline_values():
    # Four repeats: the median of rates is not the rate at the median time.
    before, after = [1.0, 1.0, 2.0, 4.0], [2.0, 2.0, 2.0, 2.0]
    result = build_difference(
        "tokens_per_sec", 1 / 1.5, 1 / 2, [1 / time for time in before], [1 / time for time in after]
    )
    assert result.ratio.value == pytest.approx(1.5 / 2)


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
    result = judge(build_difference(metric, baseline, candidate))
    assert (result.verdict, result.words, result.p_value) == (verdict, words, None)


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(5.812, 4.42, 7.38), "5.8x (4.4 to 7.4)"),
        (Ratio(1.123, 1.081, 1.153), "1.12x (1.08 to 1.15)"),
        (Ratio(2.06, 1.98, 2.2), "2.06x (1.98 to 2.20)"),
        (Ratio(0.0513, 0.0491, 0.0622), "0.051x (0.049 to 0.062)"),
        (Ratio(1606.4, 1580.2, 1633.0), "1,606x (1,580 to 1,633)"),
        (35.21, "35.2x"),
        (0.3, "0.30x"),
        (0.0, "0.00x"),
    ],
)
def test_ratios_are_formatted(ratio, text):
    assert ratio_text(ratio) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (Ratio(1.0052, 1.003, 1.008), "+0.52 % (0.3 to 0.8)"),
        (Ratio(0.9948, 0.991, 1.002), "-0.52 % (-0.9 to 0.2)"),
        (Ratio(1.00521, 1.0051, 1.0053), "+0.521 % (0.51 to 0.53)"),
        (1.2, "+20 %"),
        (17.0, "+1,600 %"),
        (1.0, "+0 %"),
    ],
)
def test_quality_differences_are_formatted(ratio, text):
    assert change_text(ratio) == text


# Code that formats a multiple (`x`) or a signed percentage.
OWN_FORMAT = re.compile(r"""\.\d[fg]\}x\b|:\+[.,\d]*[fg]\} ?%|:\+\.\d%\}""")


# Modules that format no comparison of runs, or may not import this one.
ELSEWHERE = {
    "llmtrack/decide/differences.py": "writes them",
    "llmtrack/decide/gate.py": "says the limit as it was given",
    "llmtrack/measure/statistics.py": "measures, and may import nothing of what decides",
    "llmtrack/quality/metrics.py": "measures, and may import nothing of what decides",
    "llmtrack/report/sentences/outliers.py": "multiples of a median over all prompts, which is no run",
}


def test_only_this_module_formats_ratios_and_differences():
    top = Path(__file__).parents[2]
    result = {
        f"{path.relative_to(top)}: {line.strip()}"
        for folder in ("llmtrack", "experiments")
        for path in (top / folder).rglob("*.py")
        if str(path.relative_to(top)) not in ELSEWHERE
        for line in path.read_text().splitlines()
        if OWN_FORMAT.search(line)
    }
    assert not result, "use llmtrack.decide.differences"


@pytest.mark.parametrize(
    ("ratio", "within"),
    [(1.099, True), (1.101, False), (0.91, True), (0.908, False), (0.9, False), (0.0, False)],
)
def test_being_within_the_floor_is_symmetric(ratio, within):
    # At a floor of 10 % the slower one of two reaches 1 / 1.1 = 0.909 of the faster one, not 0.9.
    assert is_within_floor(ratio, 0.1) is within
    assert ratio <= 0 or is_within_floor(1 / ratio, 0.1) is within
