"""Lower bounds of the time of a prefill, a decode step or scoring: all formulas of the roofline model.

A roofline (S. Williams, A. Waterman, D. Patterson, "Roofline", CACM 52 (2009)) bounds the time of a computation by its
arithmetic, operations / rate, and by its memory traffic, bytes / bandwidth; the larger is the floor. Operations are
those of matrix products and attention; bytes count each necessary read or write once: weights and the cache.
Activations are ignored, since they stay in CPU caches at best.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from llmtrack.engine import CacheGrowth, EngineInfo, GenerateRequest
from llmtrack.measure.formulas import decode_step_bytes

BY_MEMORY, BY_ARITHMETIC = "memory", "arithmetic"


@dataclass(frozen=True)
class Work:
    """Work of a computation: bytes moved, and floating-point operations, None if unknown."""

    bytes: float
    operations: float | None = None


@dataclass(frozen=True)
class Roof:
    """Limits of a device.

    Attributes:
        bandwidth: bytes per second.
        rate: floating-point operations per second of matrix products; None: unknown.
        doubt: why one of them is doubtful; empty if neither is.
    """

    bandwidth: float
    rate: float | None = None
    doubt: str = ""


def floor_seconds(work: Work, roof: Roof) -> float:
    """Return the minimum seconds of a computation; from its bytes alone if its operations are unknown."""
    return max(work.bytes / roof.bandwidth, _arithmetic_seconds(work, roof) or 0.0)


def bound(work: Work, roof: Roof) -> str:
    """Return which limit sets the floor: `memory` or `arithmetic`; empty if one of them is unknown."""
    seconds = _arithmetic_seconds(work, roof)
    if seconds is None:
        return ""
    return BY_ARITHMETIC if seconds > work.bytes / roof.bandwidth else BY_MEMORY


def _arithmetic_seconds(work: Work, roof: Roof) -> float | None:
    return None if work.operations is None or roof.rate is None else work.operations / roof.rate


def decode_step_work(info: EngineInfo, prompt_tokens: Sequence[int], new_tokens: int) -> Work:
    """Return the work of a decode step, averaged over the steps of a call.

    One token of each row is computed, which attends to the preceding ones and itself: as for `decode_step_bytes`,
    prompt + 1 up to prompt + new_tokens - 1 tokens.

    Args:
        prompt_tokens: of each row.
        new_tokens: of each row.
    """
    moved = decode_step_bytes(info.step_weight_bytes, info.cache, prompt_tokens, new_tokens)
    if info.operations is None:
        return Work(moved)
    steps = range(1, max(new_tokens, 2))
    attended = sum(info.cache.attended(prompt + step) for prompt in prompt_tokens for step in steps) / len(steps)
    return Work(moved, len(prompt_tokens) * info.operations.per_token + info.operations.per_context * attended)


def prefill_work(info: EngineInfo, prompt_tokens: Sequence[int]) -> Work:
    """Return the work of a pass over the prompts, without pads.

    Weights are read once, and the cache is written. The head is needed for the last token of each row only, and a token
    attends to the preceding ones and itself: n (n + 1) / 2 for n tokens, half of an unmasked product. For a mixture of
    experts, the weights are those used by one token, a lower bound.
    """
    moved = info.step_weight_bytes + sum(map(info.cache.bytes_at, prompt_tokens))
    return Work(moved, _pass_operations(info, prompt_tokens, heads=len(prompt_tokens)))


def scoring_work(info: EngineInfo, batches: Iterable[Sequence[int]]) -> Work:
    """Return the work of scoring: a prefill of each batch without a cache, and with the head at each token.

    Args:
        batches: tokens read of each row, by batch.
    """
    batches = list(batches)
    rows = [row for batch in batches for row in batch]
    return Work(len(batches) * info.step_weight_bytes, _pass_operations(info, rows, heads=sum(rows)))


def _pass_operations(info: EngineInfo, rows: Sequence[int], heads: int) -> float | None:
    if info.operations is None:
        return None
    body = info.operations.per_token - info.operations.head
    attended = sum(_attended_in_all(info.cache, row) for row in rows)
    return sum(rows) * body + heads * info.operations.head + info.operations.per_context * attended


def _attended_in_all(cache: CacheGrowth, tokens: int) -> float:
    """Return the sum of `cache.attended(n)` for n from 1 to `tokens`."""
    if not cache.per_token:
        return 0.0
    unbounded = cache.per_token - sum(size for _, size in cache.windows)
    weighted = unbounded * _triangle(tokens, tokens)
    weighted += sum(size * _triangle(tokens, window) for window, size in cache.windows)
    return weighted / cache.per_token


def _triangle(tokens: int, window: int) -> float:
    """Return the sum of min(n, window) for n from 1 to `tokens`."""
    full = min(tokens, window)
    return full * (full + 1) / 2 + (tokens - full) * window


@dataclass(frozen=True)
class Stage:
    """Prefill or decode step of a repeat, averaged over its calls: its work, minimum seconds, and the limiting bound."""

    work: Work
    floor_s: float
    bound: str


def stage(works: Sequence[Work], roof: Roof) -> Stage:
    """Average the work of calls and their floors."""
    operations = [work.operations for work in works if work.operations is not None]
    complete = operations and len(operations) == len(works)
    mean = Work(fmean(work.bytes for work in works), fmean(operations) if complete else None)
    return Stage(mean, fmean(floor_seconds(work, roof) for work in works), bound(mean, roof))


def prefill_stage(info: EngineInfo, requests: Sequence[GenerateRequest], roof: Roof) -> Stage:
    """Return the prefill of a repeat's calls."""
    return stage([prefill_work(info, _lengths(request)) for request in requests], roof)


def decode_stage(info: EngineInfo, requests: Sequence[GenerateRequest], roof: Roof) -> Stage:
    """Return the decode step of a repeat's calls."""
    return stage([decode_step_work(info, _lengths(request), request.max_new_tokens) for request in requests], roof)


def _lengths(request: GenerateRequest) -> list[int]:
    return [len(row) for row in request.prompt_ids]


def share_of_rate(work: Work, seconds: float, roof: Roof) -> float | None:
    """Return the share of a device's matrix-product rate that is reached (model FLOPs utilization), None if unknown.

    Source: A. Chowdhery et al., PaLM (2022), appendix B: operations that the model needs, whatever else is computed, over
    the time and the peak; with the measured rate in place of the data sheet's.
    """
    if work.operations is None or roof.rate is None:
        return None
    return work.operations / seconds / roof.rate
