"""Candidates are compared within blocks of samples, and dropped when significantly worse."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.decide.race import Race, Rules, t_quantile


def race_of(blocks, names, **options) -> Race:
    """Return a race with samples added block by block.

    Args:
        blocks: each a list of (name, value); the name None marks the block as disturbed.
    """
    race = Race(list(names), **options)
    for block in blocks:
        race.begin_block()
        disturbed = any(name is None for name, _ in block)
        for name, value in block:
            if name is not None:
                race.add_sample(name, value, disturbed)
    return race


def test_a_ratio_is_estimated_within_blocks():
    # Logarithms of the ratio b / a in the two blocks: ln 2 and ln 2.42, whose mean is ln 2.2. Four samples, two blocks, two candidates: 4 - 2 - 1 = 1 degree of freedom.
    race = race_of([[("a", 3.0), ("b", 6.0)], [("b", 2.42), ("a", 1.0)]], "ab")
    ratio = race.ratio("b", "a")
    assert ratio is not None
    assert ratio.value == pytest.approx(2.2)
    half = math.log(2.42 / 2) / 2
    # Each of the four samples is half / 2 off: the sum of squares is half^2, over one degree of freedom. The pair alone shows the
    # same: the variance of its two differences, 2 half^2, over the two samples that each is of. The difference of two means of
    # two samples has this variance times 1/2 + 1/2. The chance is 0.05 for one pair, and 1 / (2 x 3) of it at the second look.
    error = t_quantile(0.05 / 6, 1) * half
    assert (ratio.low, ratio.high) == pytest.approx((2.2 * math.exp(-error), 2.2 * math.exp(error)))


def test_candidates_are_compared_through_a_third_one():
    blocks = [[("a", 1.0), ("b", 2.0)], [("b", 20.0), ("c", 30.0)]]
    race = race_of(blocks, "abc")
    assert race.goodness("c") - race.goodness("a") == pytest.approx(math.log(3.0))
    assert race.ratio("c", "a") is None  # Five unknowns of four samples: the noise is not known yet.
    assert race.leader() == "c"


def test_unconnected_candidates_are_not_compared():
    race = race_of([[("a", 1.0), ("a", 1.1)], [("b", 2.0), ("b", 2.2)]], "ab")
    assert race.ratio("b", "a") is None
    assert race.dropped == {}
    assert race.leader() == "b"


def test_a_noisier_candidate_is_compared_by_its_own_noise():
    values = [1.2, 2.4, 1.2, 2.4, 1.2, 2.4]
    quiet = [[("a", 1.0), ("b", 1.5)] for _ in range(6)]
    race = race_of([*quiet, *([("a", 1.0), ("c", value)] for value in values)], "abc")
    wide = race.ratio("c", "a")
    assert wide is not None
    half = t_quantile(0.05 / 2 / 42, 20) * float(np.log(values).std(ddof=1)) / math.sqrt(6)
    assert math.log(wide.high / wide.value) >= 0.99 * half


def noisy_race(**speeds) -> Race:
    """Return a race of 8 blocks with 1 % of noise, in which the dropped are sampled no further."""
    generator = np.random.default_rng(0)
    race = Race([*speeds])
    for _ in range(8):
        race.begin_block()
        for name, speed in speeds.items():
            if name in race.alive:
                race.add_sample(name, speed * math.exp(0.01 * generator.standard_normal()))
    return race


def test_a_significantly_worse_candidate_is_dropped_and_one_within_the_margin_is_not():
    race = noisy_race(fast=3.0, fastish=2.98, slow=1.0)
    slow = race.dropped["slow"]
    assert slow.ratio is not None
    assert 1 < slow.ratio.low < 3 < slow.ratio.high * 1.05
    assert slow.why.startswith(f"{slow.by} is ")
    assert not race.open_against("fast")
    assert race.equal() == ["fast", "fastish"]
    assert race.choice() == "fast"


def test_a_single_sample_drops_a_candidate_only_if_far_behind():
    pairs = [[("a", 1.0), ("b", 0.999)] for _ in range(6)]
    race = race_of([*pairs, [("a", 1.0), ("near", 0.7)], [("a", 1.0), ("far", 0.6)]], ["a", "b", "near", "far"])
    assert "near" not in race.dropped  # 1 / 0.7 is below 1.5
    assert race.dropped["far"].by == "a"


def test_of_equals_the_simplest_is_chosen():
    race = race_of([[("a", 1.0), ("b", 1.001)], [("b", 1.0), ("a", 1.0)]] * 4, "ab")
    assert race.leader() == "b"
    assert race.choice() == "a"


def test_a_held_candidate_neither_wins_nor_drops_others_until_admitted():
    race = Race(["base", "lossy", "slow"])
    race.hold("lossy")
    for number in range(6):
        race.begin_block()
        for name, value in (("base", 1.0), ("lossy", 3.0), ("slow", 0.5)):
            if name in race.alive:
                race.add_sample(name, value * (1 + 0.01 * ((number * 7 + len(name)) % 3)))
    assert race.leader() == race.choice() == "base"
    assert "slow" in race.dropped
    race.admit("lossy")
    assert race.choice() == "lossy"
    assert race.dropped["base"].by == "lossy"


def test_lower_samples_can_be_better():
    race = race_of([[("a", 1.0), ("b", 2.0)], [("b", 2.02), ("a", 1.0)]], "ab", better="lower")
    assert race.choice() == "a"


def test_an_exact_objective_is_decided_by_one_sample_each():
    race = race_of([[("a", 100.0), ("b", 25.0)]], "ab", better="lower", exact=True)
    assert race.choice() == "b"
    ratio = race.dropped["a"].ratio
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((4.0, 4.0, 4.0))


def test_a_sample_must_be_positive():
    with pytest.raises(ValueError, match="above 0"):
        Race(["a"]).add_sample("a", 0.0)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    effects=st.lists(st.floats(-2, 2), min_size=2, max_size=6),
    blocks=st.integers(1, 8),
)
def test_without_noise_ratios_are_exact_despite_drift_between_blocks(seed, effects, blocks):
    generator = np.random.default_rng(seed)
    names = [f"c{number}" for number in range(len(effects))]
    race = Race(names, rules=Rules(far=math.inf, alpha=1e-300))
    for _ in range(blocks):
        race.begin_block()
        level = generator.normal()
        # c0 is in each block, which connects them.
        for number in {0, *map(int, generator.integers(0, len(names), 2))}:
            race.add_sample(names[number], math.exp(effects[number] + level))
    for number, name in enumerate(names):
        if race.samples[name]:
            assert race.goodness(name) - race.goodness("c0") == pytest.approx(effects[number] - effects[0], abs=1e-9)


def false_drops(rules: Rules, races: int, rounds: int = 25) -> int:
    """Return how many races of equals drop the first candidate, which is as good as any."""
    dropped = 0
    for seed in range(races):
        generator = np.random.default_rng(seed)
        race = Race([f"c{number}" for number in range(6)], rules=rules)
        for _ in range(rounds):
            race.begin_block()
            for name in race.names:
                race.add_sample(name, math.exp(0.03 * generator.standard_normal()))
        dropped += bool(race.dropped)
    return dropped


@pytest.mark.slow(3)
def test_equals_are_rarely_dropped_over_many_looks():
    """Without the correction over looks, every other race drops one."""
    assert false_drops(Rules(), 16) <= 2


NAMES = ("base", "wide", "narrow")
CALM = [
    [("base", 10.0), ("wide", 20.0)],
    [("base", 10.1), ("wide", 20.2)],
    [("base", 9.9), ("wide", 19.9)],
]
DISTURBED = [("wide", 5.0), ("narrow", 9.0), (None, None)]


def test_a_disturbed_block_alone_neither_drops_a_leader_nor_makes_one():
    """A candidate on all cores fell behind one on half of them while another program ran."""
    race = race_of([*CALM, DISTURBED], NAMES)
    assert race.leader() == "wide"
    assert "wide" not in race.dropped
    assert not race.comparable("wide", "narrow")
    # Calm again, it is far ahead.
    calm = [[("wide", 20.1), ("narrow", 12.0)], [("narrow", 12.1), ("wide", 19.9)]]
    race = race_of([*CALM, DISTURBED, *calm], NAMES)
    assert (race.leader(), list(race.dropped)) == ("wide", ["base", "narrow"])


def test_a_race_that_is_always_disturbed_is_judged_like_a_calm_one():
    calm = race_of(CALM, ("base", "wide"))
    disturbed = race_of([[*block, (None, None)] for block in CALM], ("base", "wide"))
    assert calm.ratio("wide", "base").low == pytest.approx(disturbed.ratio("wide", "base").low)
    assert calm.dropped.keys() == disturbed.dropped.keys()


def test_three_common_disturbed_blocks_make_candidates_comparable():
    assert not race_of([*CALM, *[DISTURBED] * 2], NAMES).comparable("wide", "narrow")
    assert race_of([*CALM, *[DISTURBED] * 3], NAMES).comparable("wide", "narrow")


def test_what_is_better_is_named_with_or_without_an_elimination():
    race = Race(["a", "b", "c", "d"], exact=True)
    for name, value in {"a": 1.0, "b": 2.0, "c": 3.0}.items():
        race.add_sample(name, value)
    race.drop("d", "its quality")
    assert {name: race.better_than(name) for name in race.names} == {"a": ["b", "c"], "b": ["c"], "c": [], "d": []}
    # A disqualified one eliminates nothing, and is faster all the same.
    race.disqualify("c", "its quality")
    assert race.better_than("b") == ["c"]


def test_what_is_equal_to_the_leader_is_better_than_what_the_leader_eliminated():
    race = noisy_race(simple=2.99, leader=3.0, slow=2.0)
    assert {*race.better_than("slow")} == {"simple", "leader"}
    assert race.better_than("simple") == []
    single = Race(["a", "b"])
    single.add_sample("a", 1.0)
    single.add_sample("b", 1.2)
    assert single.better_than("a") == [], "of a single sample nothing is known"
