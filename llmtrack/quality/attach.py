"""Attach the results of scoring a text, and of comparing with a reference, to a timed measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llmtrack.quality.metrics import Drift
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck, Scalar, Variant
from llmtrack.spec.scores import Item, RowSums


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Results of scoring a text.

    Attributes:
        batch_losses: mean loss of each batch, in the order of a single worker.
    """

    metrics: dict[str, float]
    facts: dict[str, Scalar]
    warnings: tuple[str, ...]
    batch_losses: tuple[float, ...]
    batch_size: int
    items: tuple[Item, ...]


def with_scores(measurement: Measurement, scores: Scores) -> Measurement:
    """Add the results of scoring a text to a timed measurement."""
    return replace(
        measurement,
        metrics={**measurement.metrics, **scores.metrics},
        facts={**measurement.facts, **scores.facts},
        warnings=tuple(dict.fromkeys((*measurement.warnings, *scores.warnings))),
        series={**measurement.series, "batch_loss": scores.batch_losses},
        items=scores.items,
        ended_at=time.time(),
    )


def without_scores(measurement: Measurement, why: str) -> Measurement:
    """Add a warning that the text could not be scored."""
    return replace(
        measurement, warnings=(*measurement.warnings, f"its quality could not be scored: {why}"), ended_at=time.time()
    )


def with_drift(measurement: Measurement, check: QualityCheck, drift: Drift, tags: Mapping[str, str]) -> Measurement:
    """Add the drift from the reference, and the tags that identify the reference."""
    assert check.reference is not None
    finding = (drift.finding,) if drift.finding else ()
    return replace(
        measurement,
        metrics={
            **measurement.metrics,
            "kl_divergence": drift.kl_divergence,
            "top1_agreement": drift.top1_agreement,
            "reference_perplexity_ratio": drift.perplexity_ratio,
            "tokens_compared": drift.tokens,
        },
        facts={
            **measurement.facts,
            "reference": reference_label(check.reference),
            "reference_tokens": check.reference_tokens,
        },
        tags={**measurement.tags, **tags},
        items=_with_row_drift(measurement.items, drift.rows),
        warnings=tuple(dict.fromkeys((*finding, *measurement.warnings))),
        ended_at=time.time(),
    )


def _with_row_drift(items: Sequence[Item], rows: Sequence[RowSums]) -> tuple[Item, ...]:
    """Add the drift of each compared document, which are the first ones, to its results."""
    drifts = [
        {"loss_change": (row.nats - row.reference_nats) / row.tokens, "top1_agreement": row.agreeing / row.tokens}
        for row in rows
    ]
    compared = (replace(item, values={**item.values, **drift}) for item, drift in zip(items, drifts, strict=False))
    return (*compared, *items[len(drifts) :])


def without_drift(measurement: Measurement, why: str) -> Measurement:
    """Add a warning that the comparison with the reference failed."""
    warning = f"it could not be compared with the reference: {why}"
    return replace(measurement, warnings=tuple(dict.fromkeys((warning, *measurement.warnings))), ended_at=time.time())


def drift_line(drift: Drift) -> str:
    """Format a comparison as a line of the console."""
    return f"    against the reference: KL {drift.kl_divergence:.4f} nats, top-1 {drift.top1_agreement:.1%}"


def reference_label(variant: Variant) -> str:
    """Label a reference in tracked runs: `packaged:smollm2 torch/float32`."""
    precision = variant.dtype if variant.quantization == "none" else variant.quantization
    return f"{variant.model} {variant.backend}/{precision}"
