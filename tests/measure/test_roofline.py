"""The roofline against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.engine import CacheGrowth, EngineInfo, GenerateRequest, Operations
from llmtrack.measure.roofline import (
    Roof,
    Work,
    bound,
    decode_stage,
    decode_step_work,
    floor_seconds,
    prefill_stage,
    prefill_work,
    scoring_work,
    share_of_rate,
)
from llmtrack.worker.device_metrics import generation_roofline, scoring_roofline

# 1,000 bytes of weights; a token takes 500 operations, 100 of them in the head, and 8 for each token it attends to.
PLAIN = EngineInfo(
    "m", "cpu", "float32", 1000, 1000, 10, None, 128, operations=Operations(500, 8, 100), arithmetic="float32"
)
ROOF = Roof(bandwidth=1e6, rate=1e6)


def windowed(size: int, window: int) -> EngineInfo:
    """Some of a token's cache is in layers with a window."""
    return replace(PLAIN, kv_windows=((window, size),))


def test_the_floor_is_the_longer_of_both_times():
    assert floor_seconds(Work(2e6, 1e6), ROOF) == 2
    assert floor_seconds(Work(2e6, 5e6), ROOF) == 5
    assert (bound(Work(2e6, 1e6), ROOF), bound(Work(2e6, 5e6), ROOF)) == ("memory", "arithmetic")


@pytest.mark.parametrize(("work", "roof"), [(Work(2e6), ROOF), (Work(2e6, 9e9), Roof(1e6))])
def test_without_operations_or_a_rate_memory_sets_the_floor_and_the_bound_is_unknown(work, roof):
    assert floor_seconds(work, roof) == 2
    assert bound(work, roof) == ""
    assert share_of_rate(work, 4, roof) is None


def test_work_of_a_decode_step():
    # Two rows of 4 and 2 tokens, 4 new: steps 1 to 3 attend to 5, 6, 7 and 3, 4, 5 tokens: 6 and 4 on the average.
    work = decode_step_work(PLAIN, (4, 2), 4)
    assert work.bytes == 1000 + 10 * (6 + 4)
    assert work.operations == 2 * 500 + 8 * (6 + 4)


def test_work_of_a_prefill():
    # 4 and 2 tokens: bodies 6 x 400, heads 2 x 100, attention 8 x (1 + 2 + 3 + 4 + 1 + 2); the cache of 6 is written.
    work = prefill_work(PLAIN, (4, 2))
    assert work.bytes == 1000 + 60
    assert work.operations == 6 * 400 + 2 * 100 + 8 * 13


def test_scoring_applies_the_head_to_each_token_and_reads_the_weights_once_per_batch():
    work = scoring_work(PLAIN, [(4, 2), (3,)])
    assert work.bytes == 2 * 1000
    assert work.operations == 9 * 500 + 8 * (10 + 3 + 6)


def test_layers_attend_to_their_window_at_most():
    # 5 of 10 bytes a token are of layers that see 3 tokens: of 4, (4 + 3) / 2 on the average.
    info = windowed(5, 3)
    assert info.cache.attended(2) == 2
    assert info.cache.attended(4) == 3.5
    assert decode_step_work(info, (3,), 2).operations == 500 + 8 * 3.5
    # 1 + 2 + 3 + 4 = 10 unbounded and 1 + 2 + 3 + 3 = 9 with the window: 9.5.
    assert prefill_work(info, (4,)).operations == 4 * 400 + 100 + 8 * 9.5


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 17, 64])
@pytest.mark.parametrize("windows", [(), ((3, 4),), ((1, 2), (16, 8))])
def test_attention_of_a_prompt_is_the_sum_over_its_tokens(tokens, windows):
    info = replace(PLAIN, kv_windows=windows, operations=Operations(0, 1, 0))
    cache = CacheGrowth(10, windows)
    assert prefill_work(info, (tokens,)).operations == pytest.approx(
        sum(cache.attended(n) for n in range(1, tokens + 1))
    )


def test_constant_state_is_moved_but_not_attended_to():
    info = replace(PLAIN, kv_bytes_per_token=0, state_bytes=70)
    assert decode_step_work(info, (4,), 2) == Work(1070, 500)
    assert prefill_work(info, (4,)) == Work(1070, 4 * 400 + 100)


def test_the_floor_of_several_batches_is_their_mean():
    requests = (GenerateRequest(((1,) * 4,), 3), GenerateRequest(((1,) * 10,), 3))
    # Steps attend to 5.5 and 11.5: 1055 and 1115 bytes, 544 and 592 operations.
    decode = decode_stage(PLAIN, requests, ROOF)
    assert decode.floor_s == pytest.approx((1055e-6 + 1115e-6) / 2)
    assert decode.bound == "memory"
    # 4 x 400 + 100 + 80 and 10 x 400 + 100 + 440: arithmetic takes longer than 1,040 and 1,100 bytes.
    prefill = prefill_stage(PLAIN, requests, ROOF)
    assert prefill.floor_s == pytest.approx((1780e-6 + 4540e-6) / 2)
    assert prefill.bound == "arithmetic"


def test_roofline_metrics_of_generation():
    timed = {"time_to_first_token_ms": 4.0, "inter_token_latency_ms": 2.0}
    metrics, facts = generation_roofline(PLAIN, (GenerateRequest(((1,) * 4,), 3),), timed, ROOF)
    assert metrics == pytest.approx(
        {
            "copy_bandwidth_gb_per_s": 1e-3,
            "matrix_tflop_per_s": 1e-6,
            "prefill_mib": 1040 / 2**20,
            "prefill_gflop": 1780e-9,
            "prefill_floor_ms": 1.78,
            "prefill_floor_share": 1.78 / 4,
            "prefill_flops_utilization": 1.78 / 4,
            "decode_mib": 1055 / 2**20,
            "decode_gflop": 544e-9,
            "decode_floor_ms": 1.055,
            "decode_floor_share": 1.055 / 2,
            "decode_flops_utilization": 0.544 / 2,
            "memory_bandwidth_utilization": 1.055 / 2,
        }
    )
    assert facts == {"arithmetic": "float32", "prefill_bound": "arithmetic", "decode_bound": "memory"}


def test_a_stage_faster_than_its_ceilings_has_no_share():
    """1,780 operations at 1e6 per second take 1.78 ms: a prefill of 0.89 ms refutes the rate, and the decode steps do not."""
    timed = {"time_to_first_token_ms": 0.89, "inter_token_latency_ms": 2.0}
    metrics, facts = generation_roofline(PLAIN, (GenerateRequest(((1,) * 4,), 3),), timed, ROOF)
    assert not {"prefill_floor_ms", "prefill_floor_share", "prefill_flops_utilization"} & set(metrics)
    assert metrics["prefill_gflop"] == pytest.approx(1780e-9)
    assert metrics["decode_floor_share"] == pytest.approx(1.055 / 2)
    assert facts["ceilings_in_doubt"] == "prefill took 0.50 times the least that the measured ceilings allow"
    assert "prefill_bound" not in facts


def test_a_scoring_faster_than_its_ceilings_has_no_share():
    metrics, facts = scoring_roofline(PLAIN, [(4,)], 0.001, ROOF)
    assert not {"score_floor_share", "score_flops_utilization"} & set(metrics)
    assert facts["ceilings_in_doubt"] == "score took 0.48 times the least that the measured ceilings allow"


def test_without_a_cache_only_the_prefill_has_a_floor():
    timed = {"time_to_first_token_ms": 4.0, "inter_token_latency_ms": 2.0}
    metrics, _ = generation_roofline(PLAIN, (GenerateRequest(((1,) * 4,), 3, False),), timed, ROOF, use_cache=False)
    assert not [name for name in metrics if name.startswith(("decode", "memory"))]
    assert metrics["prefill_floor_ms"] == pytest.approx(1.78)


def test_roofline_metrics_of_scoring():
    metrics, facts = scoring_roofline(PLAIN, [(4,)], 0.01, ROOF)
    assert metrics["score_floor_ms"] == pytest.approx(2.08)  # 4 x 500 + 8 x 10 operations
    assert metrics["score_flops_utilization"] == pytest.approx(0.208)
    assert facts["score_bound"] == "arithmetic"
