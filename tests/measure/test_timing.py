"""Timing, on an engine with known gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.engine import CacheGrowth
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.measure import timing
from llmtrack.measure.formulas import (
    GenerationTrace,
    decode_step_bytes,
    derive,
    memory_bandwidth_utilization,
    token_gaps_ms,
)
from llmtrack.measure.timing import Arm, time_arms, time_generate
from llmtrack.spec.task import RepeatPolicy
from tests.measure.exact import CHECKS, request


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_known_answers(check):
    check(timing)


def test_one_step_has_no_inter_token_latency():
    metrics = derive(GenerationTrace(0.0, (0.03,), 0.03, (4,), (1,)))
    assert metrics["time_to_first_token_ms"] == pytest.approx(30)
    assert "inter_token_latency_ms" not in metrics
    assert "decode_tokens_per_sec" not in metrics


def test_no_step_has_no_rates():
    assert derive(GenerationTrace(0.0, (), 0.5, (4,), (0,))) == {"total_latency_s": 0.5, "tokens_generated": 0}


def test_prefill_counts_the_real_tokens_of_each_row():
    metrics = derive(GenerationTrace(0.0, (0.1, 0.2), 0.2, (10, 2, 3), (2, 2, 2)))
    assert metrics["prefill_tokens_per_sec"] == pytest.approx(150)


def test_gaps_begin_with_the_first_token():
    assert token_gaps_ms(GenerationTrace(1.0, (1.03, 1.035, 1.045), 1.05, (4,), (3,))) == pytest.approx((30, 5, 10))


def test_memory_bandwidth_utilization():
    # 1000 bytes of weights, 10 bytes per cached token: rows of 4 and 6 tokens, 8 new ones each, so on average
    # 10 + 2 x 4 = 18 cached tokens: 1180 bytes a step. A step of 1 ms at 2.36 MB/s: half of the bandwidth.
    step_bytes = decode_step_bytes(1000, CacheGrowth(10), (4, 6), 8)
    assert step_bytes == 1180
    assert memory_bandwidth_utilization(step_bytes, 0.001, 2.36e6) == pytest.approx(0.5)


def test_time_generate_takes_one_text_or_many():
    one = time_generate(ScriptedEngine(clock := FakeClock(), Script(0.03, 0.005)), "abcd", 5, clock=clock)
    two = time_generate(ScriptedEngine(clock := FakeClock(), Script(0.03, 0.005)), ["abcd", "xy"], 5, clock=clock)
    assert {"total_latency_s", "tokens_generated", "tokens_per_sec", "avg_latency_per_token_ms"} <= set(one)
    assert (one["tokens_generated"], two["tokens_generated"]) == (5, 10)
    assert two["prefill_tokens_per_sec"] == pytest.approx(6 / 0.03)
    assert one["avg_latency_per_token_ms"] == pytest.approx(1000 / one["tokens_per_sec"])


def test_time_generate_rejects_an_empty_prompt_and_one_beyond_the_context():
    engine = ScriptedEngine(FakeClock(), Script(0.03, 0.005), context_length=10)
    with pytest.raises(ScenarioError, match="has no tokens"):
        time_generate(engine, "", 4)
    with pytest.raises(ScenarioError, match="ask for at most 6 prompt tokens") as caught:
        time_generate(engine, "abcdefgh", 4)
    assert caught.value.kind == "too_long"
    assert engine.calls == 0


def test_arms_are_interleaved_and_warmed_up_first():
    order = []
    engine = ScriptedEngine(clock := FakeClock(), Script(0.03, 0.005))
    policy = RepeatPolicy(warmup=1, min_repeats=2, min_seconds=0, max_repeats=2)
    arms = {"a": Arm((request(1, 4, 2),), policy), "b": Arm((request(1, 4, 2),), policy)}
    results = dict(time_arms(engine, arms, clock, on_call=lambda name, repeat: order.append((name, repeat))))
    assert order == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert set(results) == {"a", "b"}


def test_a_failing_arm_does_not_affect_others():
    boom = RuntimeError("boom")
    # Warm-up of a and b, first repeats of a and b; then a fails in its second repeat.
    scripts = [Script(0.03, 0.005)] * 4 + [Script(0, 0, error=boom), Script(0.03, 0.005)]
    engine = ScriptedEngine(clock := FakeClock(), *scripts)
    policy = RepeatPolicy(warmup=1, min_repeats=3, min_seconds=0, max_repeats=3)
    arms = {"a": Arm((request(1, 4, 5),), policy), "b": Arm((request(1, 4, 5),), policy)}
    results = dict(time_arms(engine, arms, clock))
    assert results["a"] is boom
    assert results["b"]["total_latency_s"] == pytest.approx(0.050)
    assert results["b"].summaries["total_latency_s"].n == 3


def test_an_arm_that_fails_in_its_warm_up_is_yielded_at_once():
    boom = MemoryError("no")
    engine = ScriptedEngine(clock := FakeClock(), Script(0, 0, error=boom), Script(0.03, 0.005))
    arms = {"a": Arm((request(1, 4, 5),)), "b": Arm((request(1, 4, 5),))}
    first, second = list(time_arms(engine, arms, clock))
    assert first == ("a", boom)
    assert second[0] == "b"


def test_the_time_cap_ends_the_repeats_with_a_warning():
    engine = ScriptedEngine(clock := FakeClock(), Script(2.0, 1.0))
    policy = RepeatPolicy(warmup=0, min_repeats=5, min_seconds=1, max_seconds=10)
    ((_, result),) = time_arms(engine, {"a": Arm((request(1, 4, 3),), policy)}, clock)
    assert result.summaries["total_latency_s"].n == 2  # 4 s each: the third would end after 12 s
    assert any("only 2 of 5 repeats" in warning for warning in result.warnings)


@pytest.mark.parametrize(
    ("calls", "counted"),
    [
        # The warm-up took 43 s: after a first repeat of 5 s another such call would end after 48 s.
        ([43, 5, 5], 1),
        # Two short repeats count more than the slow first call of a shape: four of 5 s fit, a fifth would not.
        ([15, 5, 5, 5, 5, 5], 4),
        # After 15 s a repeat as long as the one before would end after 30.
        ([1, 15, 1], 1),
        # The first is always made.
        ([1, 43], 1),
    ],
)
def test_no_repeat_starts_that_would_exceed_the_cap(calls, counted):
    engine = ScriptedEngine(clock := FakeClock(), *(Script(seconds, 0) for seconds in calls))
    policy = RepeatPolicy(warmup=1, min_repeats=5, min_seconds=1, max_seconds=20)
    ((_, result),) = time_arms(engine, {"a": Arm((request(1, 4, 3),), policy)}, clock)
    assert result.summaries["total_latency_s"].n == counted
    assert engine.calls == 1 + counted


def test_the_cap_applies_to_each_arm():
    engine = ScriptedEngine(clock := FakeClock(), Script(4, 0))
    policy = RepeatPolicy(warmup=0, min_repeats=5, min_seconds=1, max_seconds=10)
    arms = {name: Arm((request(1, 4, 3),), policy) for name in "ab"}
    results = dict(time_arms(engine, arms, clock))
    assert [result.summaries["total_latency_s"].n for result in results.values()] == [2, 2]


def test_the_warm_up_respects_the_cap():
    engine = ScriptedEngine(FakeClock(), Script(8, 0))
    policy = RepeatPolicy(warmup=9, min_repeats=1, min_seconds=0, max_seconds=20)
    ((_, result),) = time_arms(engine, {"a": Arm((request(1, 4, 3),), policy)}, engine.clock)
    assert (engine.calls, result.summaries["total_latency_s"].n) == (2 + 1, 1)


@pytest.mark.parametrize("lengths", [(5, 1, 5), (1, 5, 5), (5, 5, 1)])
def test_a_repeat_that_ends_early_lacks_some_metrics_and_others_continue(lengths):
    # 30 ms to the first token, 5 ms a step: of 5 tokens 50 ms, of one 30 ms and no gap at all.
    short = [Script(0.03, 0.005, new_tokens=(length,)) for length in lengths]
    full = Script(0.03, 0.005)
    scripts = [full, full, *(script for first in short for script in (first, full))]
    engine = ScriptedEngine(clock := FakeClock(), *scripts)
    policy = RepeatPolicy(warmup=1, min_repeats=3, min_seconds=0, max_repeats=3)
    arms = {name: Arm((request(1, 4, 5),), policy) for name in "ab"}
    results = dict(time_arms(engine, arms, clock))
    assert set(results) == {"a", "b"}
    assert results["a"].samples["inter_token_latency_ms"] == pytest.approx((5, 5))
    assert results["a"].samples["tokens_generated"] == lengths
    assert results["a"].gaps_ms == pytest.approx((30, 5, 5, 5, 5))
    assert any("different tokens" in warning for warning in results["a"].warnings)
    assert results["b"].summaries["inter_token_latency_ms"].n == 3


def test_an_underivable_metric_ends_its_own_arm_only(monkeypatch):
    def derive_or_fail(*calls):
        if calls[0].new_tokens == (2,):
            raise ZeroDivisionError("no")
        return derive(*calls)

    monkeypatch.setattr(timing, "derive", derive_or_fail)
    engine = ScriptedEngine(clock := FakeClock(), Script(0.03, 0.005))
    policy = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)
    results = dict(time_arms(engine, {str(new): Arm((request(1, 4, new),), policy) for new in (2, 3)}, clock))
    assert isinstance(results["2"], ZeroDivisionError)
    assert results["3"]["tokens_generated"] == 3


def test_peak_memory_is_reported():
    result = time_generate(ScriptedEngine(clock := FakeClock(), Script(0.03, 0.005)), "abcd", 2, clock=clock)
    assert result.peak_memory_bytes == 2 * 2**20


lengths = st.lists(st.integers(1, 50), min_size=1, max_size=5).map(tuple)


@given(
    start=st.floats(0, 1e4),
    gaps=st.lists(st.floats(1e-4, 10), min_size=2, max_size=30),
    tail=st.floats(0, 1),
    prompts=lengths,
)
def test_metrics_are_consistent(start, gaps, tail, prompts):
    stamps, now = [], start
    for gap in gaps:
        now += gap
        stamps.append(now)
    rows, steps = len(prompts), len(gaps)
    metrics = derive(GenerationTrace(start, tuple(stamps), now + tail, prompts, (steps,) * rows))
    assert metrics["tokens_generated"] == rows * steps
    assert metrics["tokens_per_sec"] * metrics["total_latency_s"] == pytest.approx(rows * steps)
    assert metrics["avg_latency_per_token_ms"] == pytest.approx(1000 * rows / metrics["tokens_per_sec"])
    assert metrics["decode_tokens_per_sec"] == pytest.approx(1000 * rows / metrics["inter_token_latency_ms"])
    assert metrics["prefill_tokens_per_sec"] * metrics["time_to_first_token_ms"] == pytest.approx(1000 * sum(prompts))
    total = metrics["time_to_first_token_ms"] + (steps - 1) * metrics["inter_token_latency_ms"]
    assert total == pytest.approx(1000 * (metrics["total_latency_s"] - tail), rel=1e-6, abs=1e-4)


@pytest.mark.slow(1)
@given(st.lists(st.floats(0.01, 5), min_size=1, max_size=8))
def test_headline_numbers_are_consistent_for_any_number_of_repeats(prefills):
    clock = FakeClock()
    engine = ScriptedEngine(clock, *(Script(prefill, 0.005) for prefill in prefills))
    policy = RepeatPolicy(warmup=0, min_repeats=len(prefills), min_seconds=0, max_repeats=len(prefills))
    result = time_generate(engine, "abcd", 5, policy=policy, clock=clock)
    assert result["tokens_per_sec"] == pytest.approx(5 / result["total_latency_s"])
    assert result["avg_latency_per_token_ms"] == pytest.approx(1000 / result["tokens_per_sec"])
    summary = result.summaries["tokens_per_sec"]
    assert summary.ci_low <= summary.median * (1 + 1e-12)
    assert summary.median <= summary.ci_high * (1 + 1e-12)
