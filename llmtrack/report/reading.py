"""Sentences that say what tracked numbers mean: the parts that readings are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtrack.report.table import intervals_overlap
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

MEMORY_BOUND = 0.6
FAR_FROM_BOUND = 0.3
# A perplexity that is so many times the baseline's is told in words.
SPIKE = 1.1


def has(run: pd.Series, key: str) -> bool:
    """Return whether a run has a value."""
    return ask.has(run, key)


def change(before: pd.Series, after: pd.Series, key: str) -> str:
    """Say how a time changed: `2.1x as long`, `12 % longer`, or that the difference is within noise."""
    ratio = float(after[key] / before[key])
    if intervals_overlap(before, after, key):
        return "about as long (the difference is within noise)"
    if ratio >= 2:
        return f"{ratio:.1f}x as long"
    return f"{abs(ratio - 1):.1%} {'longer' if ratio > 1 else 'less time'}"


def speed(run: pd.Series) -> str:
    """Say how fast a run was, and under which conditions."""
    repeats = run.get("spread/total_latency_s.n")
    count = f", median of {repeats:.0f} repeats" if has(run, "spread/total_latency_s.n") else ""
    return (
        f"{run['model_id']} on {run['device']} in {run['dtype']}: {run['tokens_per_sec']:.2f} tokens/s, "
        f"{run['avg_latency_per_token_ms']:.1f} ms/token ({run['prompt_tokens_total']} prompt tokens, "
        f"{run['max_new_tokens']} new ones{count})."
    )


def phases(run: pd.Series) -> list[str]:
    """Say how the call divides into prefill and decoding."""
    if not has(run, "time_to_first_token_ms") or not has(run, "decode_tokens_per_sec"):
        return []
    share = run["time_to_first_token_ms"] / 1000 / run["total_latency_s"]
    return [
        f"Prefill: {run['time_to_first_token_ms']:.0f} ms to the first token ({share:.0%} of the call, "
        f"{run['prefill_tokens_per_sec']:.0f} prompt tokens/s); decoding: {run['decode_tokens_per_sec']:.2f} tokens/s."
    ]


def bandwidth(run: pd.Series) -> list[str]:
    """Say how near decoding is to what the memory can move, and what would help."""
    if not has(run, "memory_bandwidth_utilization"):
        return []
    used = run["memory_bandwidth_utilization"]
    if used >= MEMORY_BOUND:
        advice = "memory is the limit, so smaller weights (lower precision, quantization) make it faster"
    elif used <= FAR_FROM_BOUND:
        advice = "far from the limit of memory, so overhead or arithmetic is what takes the time: try another backend"
    else:
        advice = "both memory and arithmetic count: smaller weights and another backend can each help"
    return [f"Decoding moves {used:.0%} of the measured {run['copy_bandwidth_gb_per_s']:.1f} GB/s: {advice}."]


def memory(run: pd.Series) -> list[str]:
    """Say what memory the run took."""
    if not has(run, "peak_memory_mib"):
        return []
    return [
        f"Peak memory {run['peak_memory_mib']:,.0f} MiB, of which {run['model_size_mib']:,.0f} MiB are weights."
    ]


def doubts(runs: pd.DataFrame) -> list[str]:
    """Say how many runs failed or carry warnings; nothing if none does."""
    lines = ask.unfinished(runs)
    warned = [ask.text(run, "scenario") for _, run in runs.iterrows() if ask.text(run, "warnings")]
    if warned:
        lines.append(f"Read with care: {', '.join(warned)} carried warnings (see their warnings.txt).")
    return lines
