"""Add the results of scoring a text, and of comparing with a reference, to a timed measurement (pure functions)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmtrack.quality.metrics import Drift
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck, Scalar, Variant
from llmtrack.spec.scores import Item, RowSums


def with_scores(
    timed: Measurement,
    metrics: Mapping[str, float],
    facts: Mapping[str, Scalar],
    warnings: tuple[str, ...],
    batch_losses: tuple[float, ...],
    items: tuple[Item, ...] = (),
) -> Measurement:
    """Add the results of scoring a text to a timed measurement."""
    return replace(
        timed,
        metrics={**timed.metrics, **metrics},
        facts={**timed.facts, **facts},
        warnings=tuple(dict.fromkeys((*timed.warnings, *warnings))),
        series={**timed.series, "batch_loss": batch_losses},
        items=items,
        ended_at=time.time(),
    )


def without_scores(timed: Measurement, why: str) -> Measurement:
    """Keep a timed measurement whose text could not be scored, with a warning."""
    return replace(timed, warnings=(*timed.warnings, f"its quality could not be scored: {why}"), ended_at=time.time())


def with_drift(timed: Measurement, check: QualityCheck, drift: Drift, told: Mapping[str, str]) -> Measurement:
    """Add the drift from the reference to a measurement, with the digests that identify the comparison."""
    assert check.reference is not None
    found = (drift.finding,) if drift.finding else ()
    return replace(
        timed,
        metrics={
            **timed.metrics,
            "kl_divergence": drift.kl_divergence,
            "top1_agreement": drift.top1_agreement,
            "reference_perplexity_ratio": drift.perplexity_ratio,
            "tokens_compared": drift.tokens,
        },
        facts={
            **timed.facts,
            "reference": reference_label(check.reference),
            "reference_tokens": check.reference_tokens,
        },
        tags={**timed.tags, **told},
        items=_compared(timed.items, drift.rows),
        warnings=tuple(dict.fromkeys((*found, *timed.warnings))),
        ended_at=time.time(),
    )


def _compared(items: Sequence[Item], rows: Sequence[RowSums]) -> tuple[Item, ...]:
    """Add to the results of documents how far each is from the reference's; the documents compared are the first ones."""
    found = [
        {"loss_change": (row.nats - row.reference_nats) / row.tokens, "top1_agreement": row.agreeing / row.tokens}
        for row in rows
    ]
    compared = (replace(item, values={**item.values, **more}) for item, more in zip(items, found, strict=False))
    return (*compared, *items[len(found) :])


def without_drift(timed: Measurement, why: str) -> Measurement:
    """Add a warning that the comparison with the reference failed."""
    said = f"it could not be compared with the reference: {why}"
    return replace(timed, warnings=tuple(dict.fromkeys((said, *timed.warnings))), ended_at=time.time())


def drift_line(drift: Drift) -> str:
    """Format a comparison for the console."""
    return f"    against the reference: KL {drift.kl_divergence:.4f} nats, top-1 {drift.top1_agreement:.1%}"


def reference_label(variant: Variant) -> str:
    """Return the label of a reference in tracked runs: `packaged:smollm2 torch/float32`."""
    how = variant.dtype if variant.quantization == "none" else variant.quantization
    return f"{variant.model} {variant.backend}/{how}"
