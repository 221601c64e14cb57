"""Weights in 8 or 4 bits with a scale per block, activations as they are: for decoding, which reads all weights per token."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ScenarioError
from llmtrack.installed import OWN_RECIPES
from llmtrack.quantize.options import Blocks, HqqBlocks, SmallBlocks
from llmtrack.quantize.recipe import Built, Job, Recipe
from llmtrack.scenario import Scalar

if TYPE_CHECKING:
    from onnx import ModelProto

# Products of 8-bit integers with one scale per block; 1 would be products of floats.
ACCURACY_LEVEL = 4
BLOCK_SIZES = (16, 32, 64, 128, 256)


def check_blocks(options: Mapping[str, Scalar]) -> None:
    """Refuse blocks that there is no kernel for.

    Raises:
        ScenarioError: the block size is not possible.
    """
    size = options.get("block_size", Blocks.block_size)
    if size not in BLOCK_SIZES:
        raise ScenarioError(
            f"block_size {size} is not possible: use one of {', '.join(map(str, BLOCK_SIZES))}", "unsupported"
        )


def apply_int8(job: Job) -> Built:
    """Store every linear layer's weight in 8 bits."""
    return _apply(job, bits=8)


def apply_int4(job: Job) -> Built:
    """Store every linear layer's weight in 4 bits, the head's in 8."""
    return _apply(job, bits=4)


def apply_int4_hqq(job: Job) -> Built:
    """Store weights in 4 bits with the zero points that half-quadratic quantization finds."""
    return _apply(job, bits=4, hqq=True)


def _apply(job: Job, bits: int, hqq: bool = False) -> Built:
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.onnx.tied import share_embedding

    model = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(model)
    layers = graph.linears(model)
    head = graph.head_node(model)
    # A head that is tied is the table of embeddings, too, and reads it in blocks without zero points.
    gentle = {head.name} if head is not None and (bits < 8 or tied) else set()
    block = int(job.options["block_size"])
    symmetric = bool(job.options.get("symmetric", False))
    if gentle:
        model = in_blocks(model, 8, block, True, gentle)
        if tied:
            share_embedding(model)
    model = in_blocks(model, bits, block, symmetric, {each.node for each in layers} - gentle, hqq)
    graph.save(model, job.target / MODEL_FILE)
    return Built({"linear_layers": len(layers), "weight_bits": bits})


def in_blocks(
    model: ModelProto, bits: int, block_size: int, symmetric: bool, nodes: set[str], hqq: bool = False
) -> ModelProto:
    """Return the graph with the weights of these MatMuls in blocks of few bits (MatMulNBits)."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        HQQWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    from llmtrack.onnx import graph
    from llmtrack.onnx.offsets import split_zero_points

    logging.getLogger("onnxruntime").setLevel(logging.ERROR)
    every = {each.node for each in graph.linears(model)}
    settings: dict[str, Any] = {"block_size": block_size, "bits": bits}
    config = (
        HQQWeightOnlyQuantConfig(**settings)
        if hqq
        else DefaultWeightOnlyQuantConfig(**settings, is_symmetric=symmetric, accuracy_level=ACCURACY_LEVEL)
    )
    quantizer = MatMulNBitsQuantizer(model, algo_config=config, nodes_to_exclude=sorted(every - nodes))
    quantizer.process()
    changed: ModelProto = quantizer.model.model
    if hqq:
        split_zero_points(changed, ACCURACY_LEVEL)
    graph.remove_unused(changed)
    return changed


RECIPES = (
    Recipe(
        "int8-weight-only",
        "onnx",
        "weights of linear layers, 8 bits in blocks",
        "int8",
        apply_int8,
        Blocks,
        version=2,
        needs=OWN_RECIPES["onnx"],
        check=check_blocks,
    ),
    Recipe(
        "int4-weight-only",
        "onnx",
        "weights of linear layers, 4 bits in blocks; the head 8 bits",
        "int4",
        apply_int4,
        SmallBlocks,
        version=2,
        needs=OWN_RECIPES["onnx"],
        check=check_blocks,
    ),
    Recipe(
        "int4-hqq",
        "onnx",
        "as int4-weight-only, with zero points by half-quadratic quantization",
        "int4",
        apply_int4_hqq,
        HqqBlocks,
        version=3,
        needs=OWN_RECIPES["onnx"],
        check=check_blocks,
    ),
)
