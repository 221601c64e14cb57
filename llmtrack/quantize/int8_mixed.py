"""8-bit activations where they do no harm, 8-bit weights alone where they do, and in the head: for both phases."""

from __future__ import annotations

from llmtrack.quantize.options import Mixed
from llmtrack.quantize.recipe import Built, Job, Recipe


def apply(job: Job) -> Built:
    """Quantize as int8-dynamic does, and what that leaves in float, and the head, as int8-weight-only does."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.head import gentle_head
    from llmtrack.quantize.keep_quality import leave_out
    from llmtrack.quantize.optimum_int8 import quantize
    from llmtrack.quantize.sensitivity import DYNAMIC
    from llmtrack.quantize.weight_only import in_blocks

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    layers = graph.linears(base)
    donor = in_blocks(
        graph.copy_of(base), 8, int(job.options["block_size"]), True, {each.node for each in layers}
    )
    quantized = quantize(job, base)
    gentle_head(quantized, base, tied, int(job.options["block_size"]))
    model, built = leave_out(job, base, quantized, donor, DYNAMIC)
    graph.save(model, job.target / MODEL_FILE)
    return built


RECIPES = (
    Recipe(
        "int8-mixed",
        "onnx",
        "as int8-dynamic; the layers that lose by it, and the head, as int8-weight-only",
        "int8",
        apply,
        Mixed,
        calibrated=True,
        depends_on_batch=True,
        version=2,
    ),
)
