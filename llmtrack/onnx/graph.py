"""Inspect and modify an exported decoder's ONNX graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.names import LOGITS_TO_KEEP

# A protobuf message is limited to 2 GiB; larger weights go to a separate file.
MAX_EMBEDDED_BYTES = 1_800_000_000
# Smaller weights, such as shapes and axes, may be read by tools that change nodes.
_SMALL_BYTES = 4096
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""

_END = np.iinfo(np.int64).max

Message = TypeVar("Message", ModelProto, NodeProto, TensorProto)


@dataclass(frozen=True)
class Linear:
    """A linear layer: names of a MatMul, its input, constant weight and output; (inputs, outputs) of the weight."""

    node: str
    source: str
    weight: str
    result: str
    shape: tuple[int, int]

    @property
    def parameters(self) -> int:
        """Size of the weight."""
        return self.shape[0] * self.shape[1]

    @property
    def module(self) -> str:
        """The layer's name in the PyTorch model, such as `model.layers.3.mlp.down_proj`."""
        return self.node.strip("/").removesuffix("/MatMul").replace("/", ".")


def load(path: Path) -> ModelProto:
    """Read a graph with its weights."""
    return onnx.load(str(path))


def save(model: ModelProto, path: Path) -> None:
    """Write a graph; weights that do not fit into one file go to `NAME.onnx_data` beside it."""
    large = weight_bytes(model) > MAX_EMBEDDED_BYTES
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=large,
        all_tensors_to_one_file=True,
        location=f"{path.name}_data",
        convert_attribute=False,
    )


def copy_of(message: Message) -> Message:
    """Copy a graph, node or tensor."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def import_domain(model: ModelProto, domain: str) -> None:
    """Declare an operator domain in a graph."""
    if domain and domain not in {opset.domain for opset in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


def weight_bytes(model: ModelProto) -> int:
    """Return the bytes of all weights."""
    return sum(tensor_bytes(tensor) for tensor in model.graph.initializer)


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of one tensor's values."""
    packed = tensor.data_type in (TensorProto.INT4, TensorProto.UINT4)
    bits = 4 if packed else 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64)) * bits // 8


def shrink_weights(model: ModelProto) -> set[str]:
    """Replace each large weight by a single value, for tools that only change the nodes; return their names."""
    replaced = set()
    for tensor in model.graph.initializer:
        if tensor_bytes(tensor) > _SMALL_BYTES:
            value = np.ones((1,) * len(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
            replaced.add(tensor.name)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return replaced


def restore_weights(model: ModelProto, original: ModelProto, names: Collection[str]) -> None:
    """Give weights of a modified graph their original values, and tensors their original shapes."""
    weights = weights_of(original)
    for tensor in model.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(weights[tensor.name])
    existing = producers_of(model)
    _replace(model.graph.value_info, [value for value in original.graph.value_info if value.name in existing])


def weights_of(model: ModelProto) -> dict[str, TensorProto]:
    """Return the initializers by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def producers_of(model: ModelProto) -> dict[str, NodeProto]:
    """Map each tensor's name to the node that produces it."""
    return {name: node for node in model.graph.node for name in node.output}


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name."""
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def linears(model: ModelProto) -> tuple[Linear, ...]:
    """Return the MatMuls with a constant weight, in graph order.

    Products of two activations, as in attention, have no weight to quantize.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    return tuple(
        Linear(node.name, node.input[0], node.input[1], node.output[0], (shape[0], shape[1]))
        for node in model.graph.node
        if node.op_type == "MatMul" and len(shape := shapes.get(node.input[1], ())) == 2
    )


def head_node(model: ModelProto) -> NodeProto | None:
    """Return the MatMul that produces the logits, or None if another operator does."""
    node = producers_of(model)["logits"]
    return node if node.op_type == "MatMul" else None


def plain_products(model: ModelProto) -> None:
    """Replace each Gemm with a constant weight, such as GPT-2's layers, by a MatMul and an Add."""
    weights = weights_of(model)
    replacements: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        settings = attributes_of(node)
        plain = settings.get("alpha", 1) == 1 and settings.get("beta", 1) == 1 and not settings.get("transA")
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights or len(node.input) < 3:
            continue
        weight = node.input[1]
        if settings.get("transB"):
            transposed = np.ascontiguousarray(numpy_helper.to_array(weights[weight]).T)
            weight = f"{weight}.transposed"
            model.graph.initializer.append(numpy_helper.from_array(transposed, weight))
        product = f"{node.output[0]}.product"
        name = node.name.removesuffix("/Gemm")
        replacements[node.name] = [
            helper.make_node("MatMul", [node.input[0], weight], [product], name=f"{name}/MatMul"),
            helper.make_node("Add", [product, node.input[2]], [node.output[0]], name=f"{name}/Add"),
        ]
    replace_nodes(model, replacements)
    remove_unused(model)


def untie_head(model: ModelProto) -> bool:
    """Store the head's transposed embedding as a separate weight; return whether it was tied.

    A tied head reads the embedding through a Transpose, which hides the weight from quantizers.
    """
    head = head_node(model)
    transpose = producers_of(model).get(head.input[1]) if head is not None else None
    weights = weights_of(model)
    if head is None or transpose is None or transpose.op_type != "Transpose" or transpose.input[0] not in weights:
        return False
    weight = np.ascontiguousarray(numpy_helper.to_array(weights[transpose.input[0]]).T)
    model.graph.initializer.append(numpy_helper.from_array(weight, "lm_head.weight_transposed"))
    head.input[1] = "lm_head.weight_transposed"
    remove_unused(model)
    return True


def trim_logits(model: ModelProto) -> bool:
    """Add an optional input that limits the logits to the last positions; return whether the head supports this.

    The head is a large part of a small model, and a prompt needs only its last position. The input is an overridable
    initializer, so a caller that does not know it gets all logits.
    """
    head = head_node(model)
    if head is None:
        return False
    constants = {"all": np.array([0]), "end": np.array([_END]), "axis": np.array([1])}
    model.graph.initializer.extend(
        numpy_helper.from_array(value.astype(np.int64), LOGITS_TO_KEEP if name == "all" else f"keep.{name}")
        for name, value in constants.items()
    )
    model.graph.input.append(helper.make_tensor_value_info(LOGITS_TO_KEEP, TensorProto.INT64, [1]))
    nodes = [
        # -0 is 0: from the first position on.
        helper.make_node("Neg", [LOGITS_TO_KEEP], ["keep.start"], name="keep/Neg"),
        helper.make_node(
            "Slice",
            [head.input[0], "keep.start", "keep.end", "keep.axis"],
            ["keep.hidden"],
            name="keep/Slice",
        ),
    ]
    insert_before(model, head, nodes)
    head.input[0] = "keep.hidden"
    # The exported shape declares as many logits as tokens.
    logits = next(output for output in model.graph.output if output.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_param = "kept_length"
    return True


def name_shared_weights(model: ModelProto) -> None:
    """Undo the renaming of shared weights by the exporter, which stores equal ones once."""
    weights = {tensor.name for tensor in model.graph.initializer}
    originals = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.input[0] in weights
    }
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = originals.get(name, name)


def insert_before(model: ModelProto, node: NodeProto, nodes: Sequence[NodeProto]) -> None:
    """Insert nodes before one of the graph's."""
    index = next(i for i, existing in enumerate(model.graph.node) if existing.name == node.name)
    for offset, new in enumerate(nodes):
        model.graph.node.insert(index + offset, new)


def consumers_of(model: ModelProto) -> dict[str, list[NodeProto]]:
    """Map each tensor's name to the nodes that read it."""
    consumers: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in set(node.input):
            consumers.setdefault(name, []).append(node)
    return consumers


def replace_nodes(model: ModelProto, replacements: Mapping[str, Sequence[NodeProto]]) -> None:
    """Replace nodes, by name, with other nodes or none."""
    nodes = [new for node in model.graph.node for new in replacements.get(node.name, [node])]
    _replace(model.graph.node, [copy_of(node) for node in nodes])


def remove_unused(model: ModelProto) -> None:
    """Remove nodes whose results are not read, and weights that no node reads."""
    graph = model.graph
    needed = {output.name for output in graph.output}
    used: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            used.append(node)
            needed.update(_reads(node))
    _replace(graph.node, reversed(used))
    overridable = {tensor.name for tensor in graph.input}
    _keep(graph.initializer, needed | overridable)
    _keep(graph.value_info, needed)


def graft(target: ModelProto, donor: ModelProto, results: Collection[str]) -> None:
    """Replace the producers of tensors by those of another version of the same graph.

    Equal names may refer to different weights in the two versions; each keeps its own.

    Args:
        target: modified in place; unused nodes and weights are removed.
        donor: holds, for each of these tensors, one node that computes it from tensors of both graphs.
        results: names of the tensors.
    """
    donated = {name: copy_of(node) for node in donor.graph.node for name in node.output if name in results}
    weights = weights_of(donor)
    existing = weights_of(target)
    for node in donated.values():
        for index, name in enumerate(node.input):
            if name in weights:
                node.input[index] = _add_weight(target, weights[name], existing)
        import_domain(target, node.domain)
    # A statically quantized graph rounds a result again before its use.
    rounded = {f"{name}_DequantizeLinear_Output": name for name in results}
    nodes: list[NodeProto] = []
    for node in target.graph.node:
        for index, name in enumerate(node.output):
            if name in results:
                nodes.append(donated[name])
                node.output[index] = f"replaced.{name}"
        for index, name in enumerate(node.input):
            node.input[index] = rounded.get(name, name)
        nodes.append(node)
    _replace(target.graph.node, [copy_of(node) for node in nodes])
    remove_unused(target)


def _add_weight(target: ModelProto, tensor: TensorProto, existing: dict[str, TensorProto]) -> str:
    """Add an initializer unless an equal one exists; return its name."""
    added = copy_of(tensor)
    while existing.get(added.name, added) != added:
        added.name += ".grafted"
    if added.name not in existing:
        target.graph.initializer.append(added)
        existing[added.name] = added
    return added.name


def declare_products(model: ModelProto) -> None:
    """Declare products as floats, which shape inference cannot derive for ONNX Runtime's own operators."""
    declared = {value.name for value in (*model.graph.value_info, *model.graph.output)}
    model.graph.value_info.extend(
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        for node in model.graph.node
        if node.op_type == "MatMul" and node.output[0] not in declared
    )


def _keep(field: Any, names: Collection[str]) -> None:
    """Remove all items with other names in place, without copying large weights."""
    for index in reversed([index for index, item in enumerate(field) if item.name not in names]):
        del field[index]


def _reads(node: NodeProto) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= _reads(inner)
    return names


def _replace(field: Any, items: Iterable[Any]) -> None:
    listed = list(items)
    del field[:]
    field.extend(listed)
