"""All formulas from the trace of a generate call to its metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmtrack.engine import CacheGrowth

MIN_GAPS = 8
"""Gaps from which the first and last quarter are told apart."""


@dataclass(frozen=True)
class GenerationTrace:
    """Raw timestamps and token counts of one generate call.

    Attributes:
        start: clock reading in seconds right before the call, the device idle.
        stamps: clock readings as the tokens of each decode step reached the host; the first belongs to the prefill.
        end: clock reading right after the call, the device idle again.
        prompt_tokens: tokens of each row, without pads.
        new_tokens: new tokens of each row, without pads after an early end.
    """

    start: float
    stamps: tuple[float, ...]
    end: float
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]


def derive(*calls: GenerationTrace) -> dict[str, float]:
    """Compute all metrics of the calls of one repeat; undefined metrics are absent.

    A repeat is one call, or the calls that process a list of prompts batch by batch. Total times are sums over the
    calls; the time to first token is their mean.

    Inter-token latency and decode throughput need two decode steps. `avg_latency_per_token_ms` is per row: how long a
    reader of one row waits for a token, so for one row it is exactly 1000 / tokens_per_sec.
    """
    total = math.fsum(call.end - call.start for call in calls)
    rows = sum(len(call.new_tokens) for call in calls)
    generated = sum(sum(call.new_tokens) for call in calls)
    row_seconds = math.fsum((call.end - call.start) * len(call.new_tokens) for call in calls)
    metrics = {"total_latency_s": total, "tokens_generated": float(generated)}
    if generated and total > 0:
        metrics["tokens_per_sec"] = generated / total
        metrics["avg_latency_per_token_ms"] = 1000 * row_seconds / generated
    if all(call.stamps for call in calls):
        prefill = math.fsum(call.stamps[0] - call.start for call in calls)
        metrics["time_to_first_token_ms"] = 1000 * prefill / len(calls)
        if prefill > 0:
            metrics["prefill_tokens_per_sec"] = sum(sum(call.prompt_tokens) for call in calls) / prefill
    if all(len(call.stamps) > 1 for call in calls):
        decoding = math.fsum(call.stamps[-1] - call.stamps[0] for call in calls)
        metrics["inter_token_latency_ms"] = 1000 * decoding / sum(len(call.stamps) - 1 for call in calls)
        if decoding > 0:
            # The prefill produces the first token of each row.
            metrics["decode_tokens_per_sec"] = (generated - rows) / decoding
    return metrics | _quarters(calls) | _per_sample(calls, total, row_seconds)


def _quarters(calls: tuple[GenerationTrace, ...]) -> dict[str, float]:
    """Inter-token latency of the first and last quarter of the gaps: it grows without a KV cache."""
    if len(calls) != 1 or len(calls[0].stamps) < 1 + MIN_GAPS:
        return {}
    gaps = token_gaps_ms(calls[0])[1:]
    quarter = len(gaps) // 4
    return {
        "inter_token_latency_first_quarter_ms": math.fsum(gaps[:quarter]) / quarter,
        "inter_token_latency_last_quarter_ms": math.fsum(gaps[-quarter:]) / quarter,
    }


def _per_sample(calls: tuple[GenerationTrace, ...], total: float, row_seconds: float) -> dict[str, float]:
    """Metrics per sample: its latency, and its throughput.

    `row_seconds` is the sum over all samples of the duration of their call.
    """
    samples = sum(len(call.new_tokens) for call in calls)
    if samples < 2:
        return {}
    metrics = {"batch_latency_s": total / len(calls), "latency_per_sample_s": total / samples}
    if row_seconds > 0:
        metrics["tokens_per_sec_per_sample"] = sum(sum(call.new_tokens) for call in calls) / row_seconds
    return metrics


def token_gaps_ms(trace: GenerationTrace) -> tuple[float, ...]:
    """Return the milliseconds before each token: the time to first token, then the gaps."""
    readings = (trace.start, *trace.stamps)
    return tuple(1000 * (after - before) for before, after in pairwise(readings))


def decode_step_bytes(
    step_weight_bytes: int, cache: CacheGrowth, prompt_tokens: Sequence[int], new_tokens: int
) -> float:
    """Return the mean bytes that a decode step must read: the weights, and each row's cache.

    The prefill produces the first token. The step of each further token reads the cache including that token, at
    lengths prompt + 1 to prompt + new_tokens - 1.

    Args:
        cache: bytes of a row's cache by its length.
        prompt_tokens: of each row.
        new_tokens: of each row.
    """
    steps = range(1, max(new_tokens, 2))
    cache_bytes = sum(cache.bytes_at(prompt + step) for prompt in prompt_tokens for step in steps)
    return step_weight_bytes + cache_bytes / len(steps)


def memory_bandwidth_utilization(step_bytes: float, step_seconds: float, bandwidth: float) -> float:
    """Return the share of the device's copy bandwidth that decoding achieves (MBU, 0 to about 1).

    Source: the MBU of the LLM-serving literature (bytes that must move / time / peak bandwidth), with the measured copy
    bandwidth in place of the data sheet's peak.

    Args:
        step_bytes: bytes that one decode step must read.
        bandwidth: copy bandwidth in bytes per second, counting reads and writes.
    """
    return step_bytes / step_seconds / bandwidth
