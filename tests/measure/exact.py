"""Known answers of the timing: scripts with round numbers, and their metrics worked out by hand.

The mutation tests run the same checks against damaged copies of the code.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from llmtrack.engine import GenerateRequest
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.spec.task import RepeatPolicy

THREE_REPEATS = RepeatPolicy(warmup=1, min_repeats=3, min_seconds=0, max_repeats=3)

# name: (prefill s, step s, rows, prompt tokens per row, new tokens) -> metrics by hand
#
# 30/5, batch 1: 4 prompt tokens, 5 new: 30 + 4 x 5 = 50 ms in all; 5 / 0.05 = 100 tokens/s; 50 / 5 = 10 ms
# per token; prefill 4 / 0.03; decoding 4 steps in 20 ms = 200 tokens/s.
# 30/5, batch 4: the same times, four times the tokens; per token of a row still 10 ms.
# 80/2, batch 1: 6 prompt tokens, 11 new: 80 + 10 x 2 = 100 ms; 110 tokens/s; 100 / 11 ms per token; prefill
# 6 / 0.08 = 75; decoding 10 steps in 20 ms = 500 tokens/s.
# 80/2, batch 4: the same times; 440 tokens/s; prefill 300; decoding 2000.
BY_HAND = {
    "prefill 30 ms, step 5 ms, batch 1": (
        (0.030, 0.005, 1, 4, 5),
        {
            "total_latency_s": 0.050,
            "tokens_generated": 5,
            "tokens_per_sec": 100,
            "avg_latency_per_token_ms": 10,
            "time_to_first_token_ms": 30,
            "prefill_tokens_per_sec": 4 / 0.030,
            "inter_token_latency_ms": 5,
            "decode_tokens_per_sec": 200,
        },
    ),
    "prefill 30 ms, step 5 ms, batch 4": (
        (0.030, 0.005, 4, 4, 5),
        {
            "total_latency_s": 0.050,
            "tokens_generated": 20,
            "tokens_per_sec": 400,
            "avg_latency_per_token_ms": 10,
            "time_to_first_token_ms": 30,
            "prefill_tokens_per_sec": 16 / 0.030,
            "inter_token_latency_ms": 5,
            "decode_tokens_per_sec": 800,
            "batch_latency_s": 0.050,
            "latency_per_sample_s": 0.0125,
            "tokens_per_sec_per_sample": 100,
        },
    ),
    "prefill 80 ms, step 2 ms, batch 1": (
        (0.080, 0.002, 1, 6, 11),
        {
            "total_latency_s": 0.100,
            "tokens_generated": 11,
            "tokens_per_sec": 110,
            "avg_latency_per_token_ms": 100 / 11,
            "time_to_first_token_ms": 80,
            "prefill_tokens_per_sec": 75,
            "inter_token_latency_ms": 2,
            "decode_tokens_per_sec": 500,
            "inter_token_latency_first_quarter_ms": 2,
            "inter_token_latency_last_quarter_ms": 2,
        },
    ),
    "prefill 80 ms, step 2 ms, batch 4": (
        (0.080, 0.002, 4, 6, 11),
        {
            "total_latency_s": 0.100,
            "tokens_generated": 44,
            "tokens_per_sec": 440,
            "avg_latency_per_token_ms": 100 / 11,
            "time_to_first_token_ms": 80,
            "prefill_tokens_per_sec": 300,
            "inter_token_latency_ms": 2,
            "decode_tokens_per_sec": 2000,
            "batch_latency_s": 0.100,
            "latency_per_sample_s": 0.025,
            "tokens_per_sec_per_sample": 110,
            "inter_token_latency_first_quarter_ms": 2,
            "inter_token_latency_last_quarter_ms": 2,
        },
    ),
}


def run(timing: ModuleType, engine: ScriptedEngine, request: GenerateRequest, policy: RepeatPolicy = THREE_REPEATS):
    ((_, result),) = timing.time_arms(engine, {"arm": timing.Arm((request,), policy)}, engine.clock)
    if isinstance(result, Exception):
        raise result
    return result


def request(rows: int, prompt_tokens: int, new_tokens: int) -> GenerateRequest:
    return GenerateRequest(((1,) * prompt_tokens,) * rows, new_tokens)


def check_profiles(timing: ModuleType) -> None:
    """Exactly these metrics, for both profiles at both batch sizes."""
    for (prefill, step, rows, prompt_tokens, new_tokens), expected in BY_HAND.values():
        engine = ScriptedEngine(FakeClock(1000.0), Script(prefill, step))
        result = run(timing, engine, request(rows, prompt_tokens, new_tokens))
        assert dict(result) == pytest.approx(expected, rel=1e-9)
        assert result.gaps_ms == pytest.approx([1000 * prefill, *[1000 * step] * (new_tokens - 1)])
        assert result.summaries["total_latency_s"].n == 3
        # One warm-up and three counted calls, each generating once.
        assert engine.calls == 4


def check_warmup_is_not_counted(timing: ModuleType) -> None:
    """A slow first call is the warm-up."""
    engine = ScriptedEngine(FakeClock(), Script(9.0, 1.0), Script(0.030, 0.005))
    result = run(timing, engine, request(1, 4, 5))
    assert result.samples["total_latency_s"] == pytest.approx([0.050] * 3)


def check_repeats_are_separate(timing: ModuleType) -> None:
    """Each sample belongs to one repeat."""
    engine = ScriptedEngine(
        FakeClock(), Script(0.03, 0.005), Script(0.03, 0.005), Script(0.05, 0.010), Script(0.07, 0.020)
    )
    result = run(timing, engine, request(1, 4, 3))
    assert result.samples["total_latency_s"] == pytest.approx([0.040, 0.070, 0.110])
    assert result.samples["time_to_first_token_ms"] == pytest.approx([30, 50, 70])
    assert result.samples["inter_token_latency_ms"] == pytest.approx([5, 10, 20])
    assert result["total_latency_s"] == pytest.approx(0.070)


def check_device_work_is_awaited(timing: ModuleType) -> None:
    """Device work after the last token belongs to its call, not to the next one."""
    engine = ScriptedEngine(FakeClock(), Script(0.030, 0.005, trailing_s=0.010))
    result = run(timing, engine, request(1, 4, 5))
    assert result.samples["total_latency_s"] == pytest.approx([0.060] * 3)
    assert result["inter_token_latency_ms"] == pytest.approx(5)


def check_pads_are_not_counted(timing: ModuleType) -> None:
    """Rows that end early are padded until the longest is done: 5 + 2 tokens, not 10; decoding 7 - 2 in 20 ms."""
    engine = ScriptedEngine(FakeClock(), Script(0.030, 0.005, new_tokens=(5, 2)))
    result = run(timing, engine, request(2, 4, 5))
    assert result["tokens_generated"] == 7
    assert result["tokens_per_sec"] == pytest.approx(7 / 0.050)
    assert result["decode_tokens_per_sec"] == pytest.approx(5 / 0.020)


def check_several_calls_make_one_repeat(timing: ModuleType) -> None:
    """Three prompts, two per call: calls of 50 and 70 ms make a repeat of 120 ms and 15 tokens.

    First tokens after 30 and 50 ms: 40 on average. Decoding: 4 + 4 steps in 40 ms, 12 tokens. A sample waits 60
    ms for its batch and costs 40. Seconds of rows: 2 x 50 + 70 = 170 ms for 15 tokens: 11.33 ms per token.
    """
    engine = ScriptedEngine(FakeClock(), Script(0.030, 0.005), Script(0.050, 0.005))
    policy = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)
    arm = timing.Arm((request(2, 4, 5), request(1, 6, 5)), policy)
    ((_, result),) = timing.time_arms(engine, {"arm": arm}, engine.clock)
    assert dict(result) == pytest.approx(
        {
            "total_latency_s": 0.120,
            "tokens_generated": 15,
            "tokens_per_sec": 125,
            "avg_latency_per_token_ms": 170 / 15,
            "time_to_first_token_ms": 40,
            "prefill_tokens_per_sec": 14 / 0.080,
            "inter_token_latency_ms": 5,
            "decode_tokens_per_sec": 300,
            "batch_latency_s": 0.060,
            "latency_per_sample_s": 0.040,
            "tokens_per_sec_per_sample": 15 / 0.170,
        }
    )


def check_work_before_the_call_is_not_counted(timing: ModuleType) -> None:
    """The device may still be busy with other work when the call begins."""
    clock = FakeClock()
    engine = ScriptedEngine(clock, Script(0.030, 0.005))
    engine.leave_device_busy(0.5)
    result = run(timing, engine, request(1, 4, 5), RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1))
    assert result["total_latency_s"] == pytest.approx(0.050)


CHECKS = (
    check_profiles,
    check_warmup_is_not_counted,
    check_repeats_are_separate,
    check_device_work_is_awaited,
    check_pads_are_not_counted,
    check_several_calls_make_one_repeat,
    check_work_before_the_call_is_not_counted,
)
