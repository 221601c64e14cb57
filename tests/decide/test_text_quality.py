"""A bound on perplexity is decided once the interval of the whole text is on one side of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmtrack.decide.text_quality import ComparedPart, judge_bound, perplexity_ratio


def test_once_all_parts_are_scored_the_ratio_is_exact():
    parts = [ComparedPart(11.0, 10.0, 10), ComparedPart(33.0, 30.0, 30)]
    ratio = perplexity_ratio(parts, parts_of_text=2)
    assert ratio.value == ratio.low == ratio.high == pytest.approx(math.exp(0.1))


def test_one_part_of_several_is_inconclusive():
    ratio = perplexity_ratio([ComparedPart(11.0, 10.0, 10)], parts_of_text=2)
    assert judge_bound(ratio, 1.5) == "open"
    assert ratio.value == pytest.approx(math.exp(0.1))


def test_the_interval_is_that_of_the_ratio_estimator_without_replacement():
    # Differences 1, 3 of 10 tokens each: mean 0.2 a token; residuals -1, 1; variance 2 x 2 x (1 - 2/4) = 2.
    parts = [ComparedPart(11.0, 10.0, 10), ComparedPart(13.0, 10.0, 10)]
    ratio = perplexity_ratio(parts, parts_of_text=4, alpha=0.5)
    # Student's t of 1 degree of freedom at 0.25 is 1.
    assert math.log(ratio.high) == pytest.approx(0.2 + math.sqrt(2) / 20)
    assert math.log(ratio.low) == pytest.approx(0.2 - math.sqrt(2) / 20)


def test_many_looks_at_random_parts_are_rarely_wrong():
    wrong, early = 0, 0
    for seed in range(100):
        generator = np.random.default_rng(seed)
        drawn = generator.normal(0.012, 0.02, 12)
        parts = [ComparedPart(100 * (2 + difference), 200.0, 100) for difference in drawn]
        truth = judge_bound(perplexity_ratio(parts, 12), 1.01)
        for n in range(1, 13):
            verdict = judge_bound(perplexity_ratio(parts[:n], 12, looks=12), 1.01)
            if verdict != "open":
                wrong += verdict != truth
                early += n < 12
                break
    assert wrong <= 5
    assert early >= 5


def test_far_from_the_bound_few_parts_suffice():
    parts = [ComparedPart(100.0 + nats, 90.0, 50) for nats in (0.0, 0.2, 0.1)]
    assert judge_bound(perplexity_ratio(parts, 12, looks=12, tests=8), 1.01) == "broken"


def test_nothing_scored_is_refused():
    with pytest.raises(ValueError, match="no part"):
        perplexity_ratio([], 3)
