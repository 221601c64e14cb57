"""Statistics of two sets of samples, by hand, by enumeration and against SciPy's results."""

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
    observed = sum(rank[v] for v in candidate)
    sums = [sum(rank[v] for v in dealt) for dealt in itertools.combinations(pooled, len(candidate))]
    less = sum(s <= observed for s in sums) / len(sums)
    greater = sum(s >= observed for s in sums) / len(sums)
    return less, greater, min(1.0, 2 * min(less, greater))


def test_three_against_three_can_never_be_significant():
    # One of the 20 ways to deal six samples, and its mirror image.
    assert mann_whitney_p([1, 2, 3], [4, 5, 6]) == pytest.approx(2 / 20)
    assert mann_whitney_p([1, 2, 3], [4, 5, 6], "greater") == pytest.approx(1 / 20)
    assert mann_whitney_p([1, 2, 3], [4, 5, 6], "less") == 1
    assert least_p(3, 3) == pytest.approx(0.1)
    assert least_p(4, 4) == pytest.approx(2 / 70)
    assert least_p(1, 1) == 1


def test_single_samples_and_ties_are_not_significant():
    assert mann_whitney_p([1], [2]) == 1
    assert mann_whitney_p([7, 7, 7], [7, 7, 7, 7]) == 1
    assert mann_whitney_p([7] * 80, [7] * 80) == 1


@settings(max_examples=60, deadline=None)
@given(values, values)
def test_exact_p_values_match_enumeration_with_ties(baseline, candidate):
    less, greater, both = by_counting(baseline, candidate)
    assert mann_whitney_p(baseline, candidate, "less") == pytest.approx(less)
    assert mann_whitney_p(baseline, candidate, "greater") == pytest.approx(greater)
    assert mann_whitney_p(baseline, candidate) == pytest.approx(both)
    assert mann_whitney_p(candidate, baseline) == pytest.approx(both)


# scipy.stats.mannwhitneyu(candidate, baseline, method="asymptotic") of SciPy 1.17.1, whose import takes longer than all of
# these tests: less and greater, of five pairs of samples without and with ties.
OF_SCIPY = {
    False: [
        (0.922495443638096, 0.0781846290176002),
        (0.9080192802948699, 0.09275384697630473),
        (0.9456644263381709, 0.05485205084398065),
        (0.8673238291297662, 0.13368072299703776),
        (0.9995469010998199, 0.00046073389415773647),
    ],
    True: [
        (0.9219885121141951, 0.07869550245602003),
        (0.9089235516891011, 0.09184442417781641),
        (0.9510436715956413, 0.049432305661453214),
        (0.8791643770792728, 0.12177775132830881),
        (0.9996742137080188, 0.000331412228979594),
    ],
}


@pytest.mark.parametrize("ties", [False, True])
def test_p_values_of_many_samples_match_scipy(ties):
    generator = np.random.default_rng(5)
    for less, greater in OF_SCIPY[ties]:
        baseline, candidate = generator.normal(size=70), generator.normal(0.3, size=60)
        if ties:
            baseline, candidate = baseline.round(1), candidate.round(1)
        for side, expected in {"two-sided": 2 * greater, "less": less, "greater": greater}.items():
            assert mann_whitney_p(list(baseline), list(candidate), side) == pytest.approx(expected, rel=1e-9)


def test_exact_and_approximate_p_values_agree_at_the_border():
    generator = np.random.default_rng(6)
    baseline, candidate = list(generator.normal(size=50)), list(generator.normal(0.4, size=50))
    exact, approximate = mann_whitney_p(baseline, candidate), mann_whitney_p([*baseline, 0.0], candidate)
    assert exact == pytest.approx(approximate, rel=0.1)


def test_ratio_of_medians_by_hand():
    result = ratio_of_medians([2.0, 2.0, 2.0], [3.0, 3.0, 3.0])
    assert (result.value, result.low, result.high) == (1.5, 1.5, 1.5)
    result = ratio_of_medians([1.0, 2.0, 4.0], [2.0, 3.0, 10.0])
    assert result.value == 1.5
    # The extremes that resampling can give are 2/4 and 10/1.
    assert 0.5 <= result.low < 1.5 < result.high <= 10
    assert result == ratio_of_medians([1.0, 2.0, 4.0], [2.0, 3.0, 10.0])


@pytest.mark.parametrize(("baseline", "candidate"), [([], [1.0]), ([1.0], []), ([0.0, 1.0], [1.0])])
def test_samples_without_a_ratio_are_refused(baseline, candidate):
    with pytest.raises(ValueError, match="samples"):
        ratio_of_medians(baseline, candidate)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1, and never falling.
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6))
def test_holm_only_raises_p_values_and_keeps_their_order(p_values):
    corrected = holm(p_values)
    assert all(p <= q <= 1 for p, q in zip(p_values, corrected, strict=True))
    pairs = sorted(zip(p_values, corrected, strict=True))
    assert all(a[1] <= b[1] for a, b in itertools.pairwise(pairs))


@pytest.mark.slow(1)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_the_interval_of_the_inverse_is_the_inverse_of_the_interval(one, other):
    there, back = ratio_of_medians(one, other), ratio_of_medians(other, one)
    if one != other:
        assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))
    assert there.low <= there.high
