"""Quantize linear layers to 8 bits with one scale per weight column, and optionally one per token."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization.quant_utils import get_qmin_qmax_for_qType

from llmtrack.onnx import graph

_CONSTANTS: dict[str, NDArray[Any]] = {
    # Avoids division by zero for a token of zeros.
    "least": np.array(1e-20, dtype=np.float32),
    "step": np.array(1 / 127, dtype=np.float32),
    "middle": np.array(128, dtype=np.uint8),
    "axes": np.array([-1], dtype=np.int64),
}
_LEAST, _STEP, _MIDDLE, _AXES = (f"per_token.{name}" for name in _CONSTANTS)


def scale_by_column(quantized: ModelProto, base: ModelProto) -> None:
    """Requantize the weights of linear layers with one scale per column.

    ONNX Runtime does the same, but loops over the columns of all weights in Python, which takes half of the
    quantization time of a small model. `quantized` is its output for `base` with one scale per weight.
    """
    weights = graph.weights_of(base)
    results = graph.weights_of(quantized)
    for name in {layer.weight for layer in graph.linears(base)}:
        data_type = results[f"{name}_quantized"].data_type
        values, scales, zeros = by_column(numpy_helper.to_array(weights[name]), data_type)
        for suffix, array in (("quantized", values), ("scale", scales), ("zero_point", zeros)):
            tensor = results[f"{name}_{suffix}"]
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def by_column(
    weight: NDArray[np.float32], data_type: int
) -> tuple[NDArray[np.integer], NDArray[np.float32], NDArray[np.integer]]:
    """Quantize an (inputs, outputs) weight to `TensorProto.INT8` or `TensorProto.UINT8` with a scale per column.

    Returns:
        (inputs, outputs) integers, (outputs,) scales, and (outputs,) zero points, the middle of the integers.
    """
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    low, high = map(int, get_qmin_qmax_for_qType(data_type, symmetric=True))
    ranges = 2 * np.abs(weight).max(axis=0).astype(np.float64)
    empty = ranges / (high - low) < np.finfo(np.float32).tiny
    scales = np.where(empty, 1.0, ranges / (high - low)).astype(np.float32)
    zeros = np.where(empty, 0, np.round((low + high) / 2)).astype(dtype)
    limits = np.iinfo(dtype)
    values = np.clip((weight / scales).round() + zeros, limits.min, limits.max)
    return values.astype(dtype), scales, zeros


def scale_by_token(model: ModelProto, nodes: Collection[str], signed: bool) -> None:
    """Replace MatMuls with a constant weight by 8-bit products, with a scale per weight column and per token.

    `DynamicQuantizeLinear` takes one range for all tokens of a call, which a single token with an outlier determines.
    Here each token is divided by its largest value first, so that all share the range from -1 to 1, and the product is
    multiplied by that value again: rows are independent of their batch. Weights are signed or unsigned bytes.
    """
    layers = [layer for layer in graph.linears(model) if layer.node in nodes]
    weights = graph.weights_of(model)
    constants = {f"per_token.{name}": value for name, value in _CONSTANTS.items()}
    rounded: dict[str, tuple[str, str]] = {}
    replacements: dict[str, list[NodeProto]] = {}
    for layer in layers:
        nodes_of_input: list[NodeProto] = []
        if layer.source not in rounded:
            nodes_of_input = _round_tokens(layer.source, _opset(model))
            rounded[layer.source] = nodes_of_input[-1].output[0], nodes_of_input[-2].input[1]
        values, scales, zeros = by_column(
            numpy_helper.to_array(weights[layer.weight]), TensorProto.INT8 if signed else TensorProto.UINT8
        )
        parts: dict[str, NDArray[Any]] = {f"{layer.weight}.values": values, f"{layer.weight}.scales": scales}
        if zeros.any():
            parts[f"{layer.weight}.zeros"] = zeros
        constants |= parts
        replacements[layer.node] = nodes_of_input + _product(layer, *rounded[layer.source], list(parts))
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.import_domain(model, graph.MICROSOFT)
    graph.replace_nodes(model, replacements)
    graph.remove_unused(model)


def _round_tokens(source: str, opset: int) -> list[NodeProto]:
    """Create nodes that divide each token by its largest value (the last but one) and round the result (the last)."""

    def node(op: str, *inputs: str, **settings: Any) -> NodeProto:
        return helper.make_node(op, inputs, [f"{source}/{op}"], name=f"{source}/{op}", **settings)

    def result(op: str) -> str:
        return f"{source}/{op}"

    magnitude = result("Abs")
    return [
        node("Abs", source),
        node("ReduceMax", magnitude, _AXES) if opset >= 18 else node("ReduceMax", magnitude, axes=[-1]),
        node("Max", result("ReduceMax"), _LEAST),
        node("Div", source, result("Max")),
        node("QuantizeLinear", result("Div"), _STEP, _MIDDLE),
    ]


def _product(layer: graph.Linear, rounded: str, largest: str, weight: list[str]) -> list[NodeProto]:
    """Create nodes that multiply the rounded tokens by a weight and rescale each by its largest value."""
    values, scales, *zeros = weight
    product = f"{layer.result}.shares"
    return [
        helper.make_node(
            "MatMulIntegerToFloat",
            [rounded, values, _STEP, scales, _MIDDLE, *zeros],
            [product],
            name=layer.node,
            domain=graph.MICROSOFT,
        ),
        helper.make_node("Mul", [product, largest], [layer.result], name=f"{layer.node}/scale"),
    ]


def _opset(model: ModelProto) -> int:
    return next(int(opset.version) for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
