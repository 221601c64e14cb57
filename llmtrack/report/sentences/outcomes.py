"""Sentences about how one scenario ended, for a terminal and for its page in MLflow."""

from __future__ import annotations

from llmtrack.metrics import format_metric
from llmtrack.report.escape import in_markdown
from llmtrack.spec.outcome import Failure, Measurement

_TOLD = {
    "total_latency_s": "{} s",
    "tokens_per_sec": "{} tokens/s",
    "avg_latency_per_token_ms": "{} ms/token",
    "time_to_first_token_ms": "TTFT {} ms",
    "loss": "loss {}",
    "perplexity_before": "perplexity {} before",
    "perplexity": "perplexity {}",
}
"""Metrics told of a measured scenario, if present."""


def outcome_line(outcome: Measurement | Failure) -> str:
    """Return a line about how a scenario ended."""
    return f"  {outcome.scenario.name}: {_told(outcome)}"


def outcome_note(outcome: Measurement | Failure) -> str:
    """Return the description of a scenario's run, as Markdown."""
    warnings = () if isinstance(outcome, Failure) else outcome.warnings
    return "\n".join(
        [f"**{in_markdown(_told(outcome))}**\n", *(f"- Warning: {in_markdown(each)}" for each in warnings)]
    )


def _told(outcome: Measurement | Failure) -> str:
    if isinstance(outcome, Failure):
        word = "KILLED" if outcome.kind == "interrupted" else "FAILED"
        return f"{word} ({outcome.kind}): {outcome.reason}"
    told = (
        words.format(format_metric(key, outcome.metrics[key])) for key, words in _TOLD.items() if key in outcome.metrics
    )
    repeats = outcome.summaries.get("total_latency_s")
    return ", ".join(told) + (f" (median of {repeats.n})" if repeats else "")
