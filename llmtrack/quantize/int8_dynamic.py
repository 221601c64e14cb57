"""Weights and activations in 8 bits, ranges of activations taken from each call: for prefill, which computes a lot."""

from __future__ import annotations

from llmtrack.quantize.options import Dynamic
from llmtrack.quantize.recipe import Built, Job, Recipe


def apply(job: Job) -> Built:
    """Quantize every linear layer but those that must stay in float to keep the quality; the head as int8-weight-only."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.head import gentle_head
    from llmtrack.quantize.keep_quality import leave_out
    from llmtrack.quantize.optimum_int8 import quantize
    from llmtrack.quantize.sensitivity import DYNAMIC

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    quantized = quantize(job, base)
    gentle_head(quantized, base, tied)
    model, built = leave_out(job, base, quantized, base, DYNAMIC)
    graph.save(model, job.target / MODEL_FILE)
    return built


RECIPES = (
    Recipe(
        "int8-dynamic",
        "onnx",
        "weights and activations of linear layers, 8 bits, ranges taken from each call",
        "int8",
        apply,
        Dynamic,
        calibrated=True,
        depends_on_batch=True,
        version=2,
    ),
)
