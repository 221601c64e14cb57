"""From a trace of one generate call to its metrics: every formula of the method, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class GenerationTrace:
    """Time stamps and token counts of one generate call, before any arithmetic.

    Attributes:
        start: clock reading in seconds right before the call, the device idle.
        stamps: clock readings as the tokens of each decode step reached the host; the first belongs to
            the prefill.
        end: clock reading right after the call, the device idle again.
        prompt_tokens: real tokens of each row, pads excluded.
        new_tokens: new tokens of each row, pads after an early end excluded.
    """

    start: float
    stamps: tuple[float, ...]
    end: float
    prompt_tokens: tuple[int, ...]
    new_tokens: tuple[int, ...]


def derive(trace: GenerationTrace) -> dict[str, float]:
    """Compute every metric of one trace; a metric that is undefined for it is absent.

    Inter-token latency and decode throughput need two decode steps. `avg_latency_per_token_ms` is per row:
    how long a reader of one row waits for a token, so for one row it is exactly 1000 / tokens_per_sec.

    Returns:
        Metrics by their names in the schema, in its units.
    """
    total = trace.end - trace.start
    rows = len(trace.new_tokens)
    generated = sum(trace.new_tokens)
    metrics = {"total_latency_s": total, "tokens_generated": float(generated)}
    if generated and total > 0:
        metrics["tokens_per_sec"] = generated / total
        metrics["avg_latency_per_token_ms"] = 1000 * total * rows / generated
    if trace.stamps:
        first_token = trace.stamps[0] - trace.start
        metrics["time_to_first_token_ms"] = 1000 * first_token
        if first_token > 0:
            metrics["prefill_tokens_per_sec"] = sum(trace.prompt_tokens) / first_token
    if len(trace.stamps) > 1:
        decoding = trace.stamps[-1] - trace.stamps[0]
        metrics["inter_token_latency_ms"] = 1000 * decoding / (len(trace.stamps) - 1)
        if decoding > 0:
            # The first token of each row comes out of the prefill.
            metrics["decode_tokens_per_sec"] = (generated - rows) / decoding
    return metrics


def token_gaps_ms(trace: GenerationTrace) -> tuple[float, ...]:
    """Return the milliseconds before each token: first the time to the first token, then the gaps."""
    readings = (trace.start, *trace.stamps)
    return tuple(1000 * (after - before) for before, after in pairwise(readings))


def decode_step_bytes(
    step_weight_bytes: int, kv_bytes_per_token: int, prompt_tokens: tuple[int, ...], new_tokens: int
) -> float:
    """Return the bytes that a decode step must read: the weights once, and each row's KV cache.

    The cache grows by a token a step, so the mean over the decode steps counts half of the new tokens.
    """
    cached_tokens = sum(prompt_tokens) + len(prompt_tokens) * new_tokens / 2
    return step_weight_bytes + kv_bytes_per_token * cached_tokens


def memory_bandwidth_utilization(step_bytes: float, step_seconds: float, bandwidth: float) -> float:
    """Return the share of the device's copy bandwidth that decoding achieves (MBU, 0 to about 1).

    Args:
        step_bytes: bytes that one decode step must read.
        step_seconds: seconds per decode step.
        bandwidth: measured copy bandwidth in bytes per second, reads and writes counted.

    Source: the MBU of the LLM-serving literature (bytes that must move / time / peak bandwidth), with the
    measured copy bandwidth in place of the data sheet's peak.
    """
    return step_bytes / step_seconds / bandwidth
