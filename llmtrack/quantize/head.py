"""The head in 8-bit blocks, whatever else a recipe does, and a tied embedding in the same blocks.

Errors of the head go straight into the logits, and it computes one position of a prompt only: 8-bit activations would
cost quality there and win nothing.
"""

from __future__ import annotations

from onnx import ModelProto

from llmtrack.onnx import graph
from llmtrack.onnx.tied import share_embedding
from llmtrack.quantize.weight_only import in_blocks

BLOCK_SIZE = 64


def gentle_head(quantized: ModelProto, base: ModelProto, tied: bool, block_size: int = BLOCK_SIZE) -> None:
    """Replace the head of a quantized graph by one in 8-bit blocks.

    Args:
        quantized: is changed.
        base: the float graph that it was made from, its head untied.
        tied: whether the head was the embedding, so that tokens can be looked up in its blocks.
        block_size: weights that share a scale.
    """
    head = head_layer(base)
    if head is None:
        return
    graph.graft(quantized, in_blocks(graph.copy_of(base), 8, block_size, True, {head.node}), {head.result})
    if tied:
        share_embedding(quantized)


def head_layer(base: ModelProto) -> graph.Linear | None:
    """Return the linear layer that makes the logits, or None if something else does."""
    return next((layer for layer in graph.linears(base) if layer.result == "logits"), None)
