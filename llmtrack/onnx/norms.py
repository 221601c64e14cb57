"""Fuse a residual sum and the root-mean-square norm after it into one operator of ONNX Runtime.

ONNX Runtime recognizes such norms when it loads a graph, but leaves the preceding sum as a separate operator, two per
layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.graph import MICROSOFT, makers_of, readers_of


@dataclass(frozen=True)
class _Norm:
    """A norm expressed as separate nodes.

    Attributes:
        source: name of the input.
        weight: name of the initializer of its weight.
        epsilon: added to the mean square.
        result: name of the output.
    """

    source: str
    weight: str
    epsilon: float
    result: str


def fuse_norms(model: ModelProto) -> int:
    """Fuse each sum of two activations with the norm that reads it.

    Returns:
        The number of fused sums.
    """
    made_by = makers_of(model)
    readers = readers_of(model)
    constants = _constants(model)
    fused = 0
    for node in list(model.graph.node):
        norm = _norm(node, made_by, readers, constants) if node.op_type == "Pow" else None
        made = made_by.get(norm.source) if norm is not None else None
        if norm is None or made is None or made.op_type != "Add" or constants.keys() & set(made.input):
            continue
        made_by[norm.result].output[0] = f"replaced.{norm.result}"
        made.CopyFrom(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [*made.input, norm.weight],
                [norm.result, "", "", norm.source],
                name=made.name,
                domain=MICROSOFT,
                epsilon=norm.epsilon,
            )
        )
        fused += 1
    return fused


def _norm(
    power: NodeProto,
    made_by: dict[str, NodeProto],
    readers: dict[str, list[NodeProto]],
    constants: dict[str, Any],
) -> _Norm | None:
    """Return the norm that begins with a power, or None."""

    def only_reader(node: NodeProto | None, kind: str) -> NodeProto | None:
        found = readers.get(node.output[0], []) if node is not None else []
        return found[0] if len(found) == 1 and found[0].op_type == kind else None

    mean = only_reader(power, "ReduceMean")
    add = only_reader(mean, "Add")
    root = only_reader(add, "Sqrt")
    inverse = only_reader(root, "Div")
    scaled = only_reader(inverse, "Mul")
    if mean is None or add is None or root is None or inverse is None or scaled is None:
        return None
    cast = only_reader(scaled, "Cast")
    weighted = only_reader(cast or scaled, "Mul")
    if weighted is None:
        return None
    source = power.input[0]
    epsilon = next((constants[name] for name in add.input if name in constants), np.array([]))
    weight = next((name for name in weighted.input if name in constants), "")
    plain = (
        _is(constants.get(power.input[1]), 2)
        and _is(_axes(mean, constants), -1)
        and _is(constants.get(inverse.input[0]), 1)
        and scaled.input[0 if scaled.input[1] == inverse.output[0] else 1] == source
        and epsilon.size == 1
        and weight in constants
        and constants[weight].ndim == 1
    )
    if not plain:
        return None
    return _Norm(_uncast(source, made_by), weight, float(epsilon.reshape(())), weighted.output[0])


def _uncast(name: str, made_by: dict[str, NodeProto]) -> str:
    """Follow casts to float, which is the type of all activations here."""
    while (node := made_by.get(name)) is not None and node.op_type == "Cast":
        if helper.get_attribute_value(node.attribute[0]) != TensorProto.FLOAT:
            break
        name = node.input[0]
    return name


def _axes(mean: NodeProto, constants: dict[str, Any]) -> Any:
    if len(mean.input) > 1:
        return constants.get(mean.input[1])
    return next((np.array(each.ints) for each in mean.attribute if each.name == "axes"), None)


def _is(found: Any, expected: float) -> bool:
    return found is not None and found.size == 1 and float(found.reshape(())) == expected


def _constants(model: ModelProto) -> dict[str, Any]:
    """Return small constant tensors."""
    tensors = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) <= 1}
    tensors |= {
        node.output[0]: node.attribute[0].t
        for node in model.graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    return {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
