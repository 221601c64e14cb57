"""Weights and activations in 8 bits, ranges of activations fixed beforehand from a calibration text."""

from __future__ import annotations

from llmtrack.errors import UsageError
from llmtrack.quantize.options import Static
from llmtrack.quantize.recipe import Built, Job, Recipe


def apply(job: Job) -> Built:
    """Calibrate, and quantize every linear layer but those that must stay in float to keep the quality; the head as int8-weight-only."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.head import gentle_head
    from llmtrack.quantize.keep_quality import leave_out
    from llmtrack.quantize.optimum_int8 import CALIBRATION_METHODS, quantize
    from llmtrack.quantize.sensitivity import STATIC

    method = str(job.options["calibration_method"])
    if method not in CALIBRATION_METHODS:
        raise UsageError(f"no calibration_method {method!r}: use {', '.join(CALIBRATION_METHODS)}")
    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    quantized = quantize(job, base, method)
    gentle_head(quantized, base, tied)
    model, built = leave_out(job, base, quantized, base, STATIC)
    graph.save(model, job.target / MODEL_FILE)
    return built


RECIPES = (
    Recipe(
        "int8-static",
        "onnx",
        "weights and activations of linear layers, 8 bits, ranges fixed by calibration",
        "int8",
        apply,
        Static,
        calibrated=True,
        version=2,
    ),
)
