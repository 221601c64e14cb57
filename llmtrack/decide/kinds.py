"""What a metric needs to be compared, and how sure one value of it is."""

from __future__ import annotations

from typing import Literal

from llmtrack import metrics as schema

Needs = Literal["work and machine", "machine", "text", "nothing"]
Sureness = Literal["sampled", "exact", "once"]

# Figures of how well a text is predicted: they depend on the text and how it is cut, not on the machine.
QUALITY = frozenset(
    {
        "loss",
        "loss_stderr",
        "perplexity",
        "loss_before",
        "perplexity_before",
        "word_perplexity",
        "bits_per_byte",
        "kl_divergence",
        "top1_agreement",
        "reference_perplexity_ratio",
        "tokens_scored",
        "bytes_scored",
        "words_scored",
        "unknown_tokens_scored",
        "bytes_without_token",
        "windows_scored",
        "tokens_truncated",
        "documents_scored",
        "documents_skipped",
    }
)
# Per token of a tokenizer: two tokenizers cut one text into different tokens.
PER_TOKEN = frozenset(
    {
        "loss",
        "loss_stderr",
        "perplexity",
        "loss_before",
        "perplexity_before",
        "train_loss",
        "kl_divergence",
        "top1_agreement",
        "reference_perplexity_ratio",
    }
)
# Of the text itself, however it is cut into tokens.
PER_TEXT = frozenset({"bits_per_byte", "word_perplexity"})

_NEEDS: dict[str, Needs] = {
    "model_size_mib": "nothing",
    "load_time_s": "machine",
    "copy_bandwidth_gb_per_s": "machine",
}

# Relative change up to which values without repeats count as equal. Sums in another order, on another machine or
# batch size, move a loss by less than a thousandth; the peak of a process depends on what its allocator keeps.
TOLERANCE = 0.001
TOLERANCES = {"peak_memory_mib": 0.02, "model_size_mib": 0.0}

_UNITS_OF_TIME = ("s", "ms", "tokens/s", "GB/s")


def needs(metric: str) -> Needs:
    """Return what must be the same on both sides for a metric to be compared."""
    return "text" if metric in QUALITY else _NEEDS.get(metric, "work and machine")


def sureness(metric: str) -> Sureness:
    """Return `sampled` (one value per repeat), `exact` (would be the same again) or `once` (noise is not known)."""
    known = schema.METRIC_BY_NAME.get(metric)
    if known is None:
        return "once"
    if known.sampled:
        return "sampled"
    timed = known.unit in _UNITS_OF_TIME or metric == "memory_bandwidth_utilization"
    return "once" if timed else "exact"


def tolerance(metric: str) -> float:
    """Return the relative change up to which two values of an exact metric count as equal."""
    return TOLERANCES.get(metric, TOLERANCE)


def is_rate(metric: str) -> bool:
    """Return whether a metric is work per time, of which only the times may be averaged."""
    known = schema.METRIC_BY_NAME.get(metric)
    return known is not None and known.unit == "tokens/s"


def better(metric: str) -> schema.Better:
    """Return which direction of a metric is better, `-` where neither is or it is not known."""
    known = schema.METRIC_BY_NAME.get(metric)
    return known.better if known else "-"


def unit(metric: str) -> str:
    """Return the unit of a metric, `-` where it has none."""
    known = schema.METRIC_BY_NAME.get(metric)
    return known.unit if known else "-"
