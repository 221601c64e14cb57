"""Formulas against numbers worked out by hand, and what they say of noise and of real changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.decide.significance import holm, least_p, mann_whitney_p, ratio_of_medians

values = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def by_counting(baseline, candidate):
    """The same test, by dealing the samples in every way."""
    pooled = [*candidate, *baseline]
    ordered = sorted(pooled)
    rank = {v: (2 * ordered.index(v) + ordered.count(v) + 1) / 2 for v in pooled}
    seen = sum(rank[v] for v in candidate)
    sums = [sum(rank[v] for v in dealt) for dealt in itertools.combinations(pooled, len(candidate))]
    less = sum(s <= seen for s in sums) / len(sums)
    greater = sum(s >= seen for s in sums) / len(sums)
    return less, greater, min(1.0, 2 * min(less, greater))


def test_three_against_three_can_never_be_significant():
    # One of the 20 ways to deal six samples, and its mirror image.
    assert mann_whitney_p([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    assert mann_whitney_p([1, 2, 3], [4, 5, 6], "greater") == pytest.approx(1 / 20)
    assert mann_whitney_p([1, 2, 3], [4, 5, 6], "less") == 1
    assert least_p(3, 3) == pytest.approx(0.1)
    assert least_p(4, 4) == pytest.approx(2 / 70)
    assert least_p(1, 1) == 1


def test_one_sample_and_only_ties_tell_nothing():
    assert mann_whitney_p([1], [2]) == 1
    assert mann_whitney_p([7, 7, 7], [7, 7, 7, 7]) == 1
    assert mann_whitney_p([7] * 80, [7] * 80) == 1


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_exact_with_ties(baseline, candidate):
    less, greater, both = by_counting(baseline, candidate)
    assert mann_whitney_p(baseline, candidate, "less") == pytest.approx(less)
    assert mann_whitney_p(baseline, candidate, "greater") == pytest.approx(greater)
    assert mann_whitney_p(baseline, candidate) == pytest.approx(both)
    assert mann_whitney_p(candidate, baseline) == pytest.approx(both)


@pytest.mark.slow(1)
@pytest.mark.parametrize("ties", [False, True])
def test_many_samples_as_scipy_has_it(ties):
    stats = pytest.importorskip("scipy.stats", reason="a dependency of mlflow")
    generator = np.random.default_rng(5)
    for _ in range(5):
        one, other = generator.normal(size=70), generator.normal(0.3, size=60)
        if ties:
            one, other = one.round(1), other.round(1)
        for side in ("two-sided", "less", "greater"):
            expected = stats.mannwhitneyu(other, one, alternative=side, method="asymptotic").pvalue
            assert mann_whitney_p(list(one), list(other), side) == pytest.approx(expected, rel=1e-9)


def test_the_exact_and_the_approximate_side_meet():
    generator = np.random.default_rng(6)
    one, other = list(generator.normal(size=50)), list(generator.normal(0.4, size=50))
    exact, approximate = mann_whitney_p(one, other), mann_whitney_p([*one, 0.0], other)
    assert exact == pytest.approx(approximate, rel=0.1)


def test_ratio_of_medians_by_hand():
    found = ratio_of_medians([2.0, 2.0, 2.0], [3.0, 3.0, 3.0])
    assert (found.value, found.low, found.high) == (1.5, 1.5, 1.5)
    found = ratio_of_medians([1.0, 2.0, 4.0], [2.0, 3.0, 10.0])
    assert found.value == 1.5
    # The extremes that resampling can give are 2/4 and 10/1.
    assert 0.5 <= found.low < 1.5 < found.high <= 10
    assert found == ratio_of_medians([1.0, 2.0, 4.0], [2.0, 3.0, 10.0])


@pytest.mark.parametrize(("one", "other"), [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0])])
def test_what_has_no_ratio_is_refused(one, other):
    with pytest.raises(ValueError, match="samples"):
        ratio_of_medians(one, other)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1, and never falling.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_never_makes_a_p_value_smaller_nor_changes_their_order(p_values):
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    pairs = sorted(zip(p_values, corrected, strict=True))
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(pairs))
