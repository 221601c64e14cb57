"""Store weights in 8 or 4 bits with a scale per block; decoding is bound by reading weights."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from llmtrack.host.packages import OWN_RECIPES
from llmtrack.quantize.options import (
    Blocks,
    GptqBlocks,
    HqqBlocks,
    MixedBlocks,
    SmallBlocks,
)
from llmtrack.quantize.recipe import Built, Job, Recipe

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto

    from llmtrack.onnx.graph import Linear

# 4: products of 8-bit integers with one scale per block; 1 would be products of floats.
ACCURACY_LEVEL = 4
NEAREST, HQQ, GPTQ = "nearest", "hqq", "gptq"
HELD_OUT = 4
"""Every n-th calibration row is held out for the bound: weights look too good on rows that they were fitted to."""
MOST_PRODUCTS = 2**30
"""Maximum bytes of input products in memory; the text is read again for the remaining layers."""


def _apply(job: Job, bits: int, method: str = NEAREST) -> Built:
    """Store every linear layer's weight in few bits, the head's in 8 by default.

    With a bound (`keep_quality`), as few of the most sensitive layers as possible get 8 bits.

    Args:
        method: rounding to the nearest, with zero points by half-quadratic quantization, or by GPTQ, which compensates
            errors on a calibration text.
    """
    from llmtrack.onnx import graph
    from llmtrack.onnx.matmul_nbits import share_embedding
    from llmtrack.onnx.session import MODEL_FILE

    model = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(model)
    base = graph.copy_of(model) if method == GPTQ else model
    layers = graph.linears(model)
    head = graph.head_node(model)
    # A tied head shares the embedding table, whose lookup requires blocks without zero points.
    separate = {head.name} if head is not None and (bits < 8 or tied) else set()
    block = int(job.options["block_size"])
    symmetric = bool(job.options.get("symmetric", False))
    if separate:
        model = in_blocks(model, int(job.options.get("head_bits", 8)), block, True, separate)
        if tied:
            share_embedding(model)
    rest = {layer.node for layer in layers} - separate
    model = in_blocks(model, bits, block, symmetric, rest, method == HQQ)
    built = Built({"linear_layers": len(layers), "weight_bits": bits})
    bounded = "keep_quality" in job.options
    if method == GPTQ:
        rows = [row for index, row in enumerate(job.rows) if index % HELD_OUT or not bounded]
        round_by_gptq(model, base, block, rows)
    if bounded:
        from llmtrack.quantize.sensitivity import Rounding, leave_out

        donor = in_blocks(graph.copy_of(base), 8, block, True, rest)
        held_out = replace(job, rows=job.rows[::HELD_OUT])
        model, search = leave_out(held_out, base, model, donor, Rounding("none", bits, block))
        built = replace(search, facts={**built.facts, **search.facts})
    graph.save(model, job.target / MODEL_FILE)
    return built


def in_blocks(
    model: ModelProto, bits: int, block_size: int, symmetric: bool, nodes: set[str], hqq: bool = False
) -> ModelProto:
    """Store the weights of these MatMuls in blocks of few bits (MatMulNBits)."""
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        HQQWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    from llmtrack.onnx import graph
    from llmtrack.onnx.matmul_nbits import split_zero_points

    logging.getLogger("onnxruntime").setLevel(logging.ERROR)
    every = {layer.node for layer in graph.linears(model)}
    settings: dict[str, Any] = {"block_size": block_size, "bits": bits}
    config = (
        HQQWeightOnlyQuantConfig(**settings)
        if hqq
        else DefaultWeightOnlyQuantConfig(**settings, is_symmetric=symmetric, accuracy_level=ACCURACY_LEVEL)
    )
    quantizer = MatMulNBitsQuantizer(model, algo_config=config, nodes_to_exclude=sorted(every - nodes))
    quantizer.process()
    quantized: ModelProto = quantizer.model.model
    if hqq:
        split_zero_points(quantized, ACCURACY_LEVEL)
    graph.remove_unused(quantized)
    return quantized


def round_by_gptq(model: ModelProto, base: ModelProto, block_size: int, rows: Sequence[Sequence[int]]) -> None:
    """Round the 4-bit blocks with zero points of a graph again, by GPTQ, on rows of a calibration text."""
    from onnx import numpy_helper

    from llmtrack.onnx import graph
    from llmtrack.quantize.gptq import factored, gptq, pack
    from llmtrack.quantize.sensitivity import inputs_of

    stored = graph.weights_of(model)
    weights = graph.weights_of(base)
    nodes = {
        node.output[0]: node
        for node in model.graph.node
        if node.op_type == "MatMulNBits" and graph.attributes_of(node).get("bits") == 4
    }
    for group in _groups_in_memory([layer for layer in graph.linears(base) if layer.result in nodes]):
        products: dict[str, Any] = {}
        for inputs in inputs_of(base, group, rows):
            for name, values in inputs.items():
                products[name] = products.get(name, 0) + values.T @ values
        # Neighbours read the same inputs, such as queries, keys and values.
        for source, layers in groupby(group, key=lambda layer: layer.source):
            importance, spread = factored(products[source])
            for layer in layers:
                rounded = gptq(numpy_helper.to_array(weights[layer.weight]), importance, spread, block_size)
                arrays: Sequence[NDArray[Any]] = pack(rounded, block_size)
                for name, array in zip(nodes[layer.result].input[1:], arrays, strict=True):
                    shape = tuple(stored[name].dims)
                    stored[name].CopyFrom(numpy_helper.from_array(array.reshape(shape), name))


def _groups_in_memory(layers: Sequence[Linear]) -> Iterator[list[Linear]]:
    """Group layers whose input products fit into memory at once."""
    group: list[Linear] = []
    sizes: dict[str, int] = {}
    for layer in layers:
        size = {layer.source: 4 * layer.shape[0] ** 2}
        if group and sum((sizes | size).values()) > MOST_PRODUCTS:
            yield group
            group, sizes = [], {}
        group.append(layer)
        sizes |= size
    if group:
        yield group


_recipe = partial(Recipe, backend="onnx", needs=OWN_RECIPES["onnx"])

RECIPES = (
    _recipe(
        "int8-weight-only",
        quantizes="weights of linear layers, 8 bits in blocks",
        dtype="int8",
        apply=partial(_apply, bits=8),
        options=Blocks,
        version=2,
    ),
    _recipe(
        "int4-weight-only",
        quantizes="weights of linear layers, 4 bits in blocks; the head 8 bits by default",
        dtype="int4",
        apply=partial(_apply, bits=4),
        options=SmallBlocks,
        version=2,
    ),
    _recipe(
        "int4-hqq",
        quantizes="as int4-weight-only, with fractional zero points by half-quadratic quantization (HQQ)",
        dtype="int4",
        apply=partial(_apply, bits=4, method=HQQ),
        options=HqqBlocks,
        version=3,
    ),
    _recipe(
        "int4-gptq",
        quantizes="as int4-weight-only, with integer zero points, each weight compensating the rounding errors before it (GPTQ)",
        dtype="int4",
        apply=partial(_apply, bits=4, method=GPTQ),
        options=GptqBlocks,
        calibrated=True,
    ),
    _recipe(
        "int4-mixed",
        quantizes="as int4-gptq; the most sensitive layers, and the head, 8 bits in blocks",
        dtype="int4",
        apply=partial(_apply, bits=4, method=GPTQ),
        options=MixedBlocks,
        calibrated=True,
    ),
)
