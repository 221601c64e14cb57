"""Build the graph for rows without pads: fewer and larger operators than the one for any mask.

If no row has a pad, the slot of a token in the cache is its position, so that `GroupQueryAttention` rotates by itself,
needs no mask, and takes queries, keys and values as one merged product. The file holds the graph for any mask; this one
is derived on loading, like ONNX Runtime's own optimizations, and computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.matmul_nbits import merge_products
from llmtrack.onnx.names import COS, IN_PLACE, LAST, SIN, TOTAL

_MASKS = frozenset({"attention_mask", "position_ids"})


@dataclass(frozen=True)
class Angles:
    """Rotary angles of a graph; see `llmtrack.onnx.attention.Rotary`."""

    frequencies: NDArray[np.float32]
    magnitude: float

    def tables(self, positions: int) -> dict[str, NDArray[np.float32]]:
        """Compute (positions, half the head's width) cosines and sines."""
        angles = np.arange(positions, dtype=np.float32)[:, None] * self.frequencies
        factor = np.float32(self.magnitude)
        return {COS: np.cos(angles) * factor, SIN: np.sin(angles) * factor}


@dataclass(frozen=True)
class Unpadded:
    """A serialized graph for rows without pads, and the source of its inputs `COS` and `SIN`."""

    content: bytes
    angles: Angles


def unpadded(model: ModelProto) -> Unpadded | None:
    """Derive the graph for rows without pads from an exported, possibly quantized, one, which is modified.

    Returns:
        None if not every layer has fused attention, or the weights do not fit into a message.
    """
    layers = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    pasts = sum(tensor.name.endswith(".key") for tensor in model.graph.input)
    weights = graph.weights_of(model)
    names = ("rotary.frequencies", "rotary.magnitude")
    if not layers or len(layers) != pasts or any(name not in weights for name in names):
        return None
    if graph.weight_bytes(model) > graph.MAX_EMBEDDED_BYTES:
        return None
    frequencies, magnitude = (numpy_helper.to_array(weights[name]) for name in names)
    graph.name_shared_weights(model)
    producers = graph.producers_of(model)
    inputs = [[*(producers[name].input[0] for name in node.input[:2]), node.input[2]] for node in layers]
    merged = merge_products(model, inputs)
    layers = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node, parts in zip(layers, inputs, strict=True):
        _rotate_inside(node, [merged[parts[0]], "", ""] if parts[0] in merged else parts)
    fuse_norms(model)
    _exchange_inputs(model, len(frequencies[0]))
    graph.remove_unused(model)
    if any(_MASKS & set(node.input) for node in model.graph.node):
        return None
    helper.set_model_props(model, {IN_PLACE: "yes"})
    return Unpadded(model.SerializeToString(), Angles(frequencies[0], float(magnitude)))


def _rotate_inside(attention: NodeProto, inputs: Sequence[str]) -> None:
    """Make the attention operator rotate its inputs: queries, keys and values, or all merged in the first."""
    settings = graph.attributes_of(attention) | {"do_rotary": 1}
    attention.CopyFrom(
        helper.make_node(
            attention.op_type,
            [*inputs, *attention.input[3:5], LAST, TOTAL, COS, SIN],
            list(attention.output),
            name=attention.name,
            domain=attention.domain,
            **settings,
        )
    )


def _exchange_inputs(model: ModelProto, half: int) -> None:
    inputs = [tensor for tensor in model.graph.input if tensor.name not in _MASKS]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.graph.input.extend(
        [
            helper.make_tensor_value_info(LAST, TensorProto.INT32, ["batch_size"]),
            helper.make_tensor_value_info(TOTAL, TensorProto.INT32, []),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["places", half]) for name in (COS, SIN)),
        ]
    )
    graph.replace_nodes(model, {node.name: [] for node in model.graph.node if {COS, SIN} & set(node.output)})


@dataclass(frozen=True)
class _Norm:
    """A norm expressed as separate nodes: names of its input, weight and output, and what is added to the mean square."""

    source: str
    weight: str
    epsilon: float
    result: str


def fuse_norms(model: ModelProto) -> int:
    """Fuse each sum of two activations with the root-mean-square norm that reads it.

    ONNX Runtime recognizes such norms when it loads a graph, but leaves the preceding sum as a separate operator, two
    per layer. Returns the number of fused sums.
    """
    producers = graph.producers_of(model)
    consumers = graph.consumers_of(model)
    constants = _constants(model)
    fused = 0
    for node in list(model.graph.node):
        norm = _norm(node, producers, consumers, constants) if node.op_type == "Pow" else None
        total = producers.get(norm.source) if norm is not None else None
        if norm is None or total is None or total.op_type != "Add" or constants.keys() & set(total.input):
            continue
        producers[norm.result].output[0] = f"replaced.{norm.result}"
        total.CopyFrom(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [*total.input, norm.weight],
                [norm.result, "", "", norm.source],
                name=total.name,
                domain=graph.MICROSOFT,
                epsilon=norm.epsilon,
            )
        )
        fused += 1
    return fused


def _norm(
    power: NodeProto,
    producers: dict[str, NodeProto],
    consumers: dict[str, list[NodeProto]],
    constants: dict[str, Any],
) -> _Norm | None:
    """Return the norm that begins with a power, or None."""

    def only_consumer(node: NodeProto | None, op_type: str) -> NodeProto | None:
        nodes = consumers.get(node.output[0], []) if node is not None else []
        return nodes[0] if len(nodes) == 1 and nodes[0].op_type == op_type else None

    mean = only_consumer(power, "ReduceMean")
    add = only_consumer(mean, "Add")
    root = only_consumer(add, "Sqrt")
    inverse = only_consumer(root, "Div")
    scaled = only_consumer(inverse, "Mul")
    if mean is None or add is None or root is None or inverse is None or scaled is None:
        return None
    cast = only_consumer(scaled, "Cast")
    weighted = only_consumer(cast or scaled, "Mul")
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
    return _Norm(_uncast(source, producers), weight, float(epsilon.reshape(())), weighted.output[0])


def _uncast(name: str, producers: dict[str, NodeProto]) -> str:
    """Follow casts to float, which is the type of all activations here."""
    while (node := producers.get(name)) is not None and node.op_type == "Cast":
        if helper.get_attribute_value(node.attribute[0]) != TensorProto.FLOAT:
            break
        name = node.input[0]
    return name


def _axes(mean: NodeProto, constants: dict[str, Any]) -> Any:
    if len(mean.input) > 1:
        return constants.get(mean.input[1])
    return next((np.array(attribute.ints) for attribute in mean.attribute if attribute.name == "axes"), None)


def _is(value: Any, expected: float) -> bool:
    return value is not None and value.size == 1 and float(value.reshape(())) == expected


def _constants(model: ModelProto) -> dict[str, Any]:
    tensors = {tensor.name: tensor for tensor in model.graph.initializer if len(tensor.dims) <= 1}
    tensors |= {
        node.output[0]: node.attribute[0].t
        for node in model.graph.node
        if node.op_type == "Constant" and node.attribute[0].name == "value"
    }
    return {name: numpy_helper.to_array(tensor) for name, tensor in tensors.items()}
