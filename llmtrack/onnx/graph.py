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
MICROSOFT = "com.microsoft"
"""Domain of ONNX Runtime's own operators."""

_END = np.iinfo(np.int64).max

Message = TypeVar("Message", ModelProto, NodeProto)


@dataclass(frozen=True)
class Linear:
    """A MatMul with a constant second input, that is, a linear layer.

    Attributes:
        node: name of its node.
        source: name of its input tensor.
        weight: name of the initializer, (inputs, outputs).
        result: name of its output tensor.
        shape: of the weight.
    """

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
    """Return a deep copy of a graph or node."""
    twin = type(message)()
    twin.CopyFrom(message)
    return twin


def import_domain(model: ModelProto, domain: str) -> None:
    """Declare an operator domain in a graph."""
    if domain and domain not in {each.domain for each in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(domain, 1))


def weight_bytes(model: ModelProto) -> int:
    """Return the bytes of all weights."""
    return sum(tensor_bytes(tensor) for tensor in model.graph.initializer)


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of one tensor's values."""
    packed = tensor.data_type in (TensorProto.INT4, TensorProto.UINT4)
    bits = 4 if packed else 8 * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return int(np.prod(tensor.dims, dtype=np.int64)) * bits // 8


def weights_of(model: ModelProto) -> dict[str, TensorProto]:
    """Return the initializers by name."""
    return {tensor.name: tensor for tensor in model.graph.initializer}


def makers_of(model: ModelProto) -> dict[str, NodeProto]:
    """Return the node that produces each tensor, by the tensor's name."""
    return {name: node for node in model.graph.node for name in node.output}


def settings_of(node: NodeProto) -> dict[str, Any]:
    """Return a node's attributes by name."""
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


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
    made_by = makers_of(model)
    node = made_by["logits"]
    return node if node.op_type == "MatMul" else None


def plain_products(model: ModelProto) -> None:
    """Replace each Gemm with a constant weight, such as GPT-2's layers, by a MatMul and an Add."""
    weights = weights_of(model)
    nodes: list[NodeProto] = []
    for node in model.graph.node:
        settings = settings_of(node)
        plain = settings.get("alpha", 1) == 1 and settings.get("beta", 1) == 1 and not settings.get("transA")
        if node.op_type != "Gemm" or not plain or node.input[1] not in weights or len(node.input) < 3:
            nodes.append(copy_of(node))
            continue
        weight = node.input[1]
        if settings.get("transB"):
            turned = np.ascontiguousarray(numpy_helper.to_array(weights[weight]).T)
            weight = f"{weight}.transposed"
            model.graph.initializer.append(numpy_helper.from_array(turned, weight))
        product = f"{node.output[0]}.product"
        name = node.name.removesuffix("/Gemm")
        nodes.append(helper.make_node("MatMul", [node.input[0], weight], [product], name=f"{name}/MatMul"))
        nodes.append(helper.make_node("Add", [product, node.input[2]], [node.output[0]], name=f"{name}/Add"))
    _replace(model.graph.node, nodes)
    remove_unused(model)


def untie_head(model: ModelProto) -> bool:
    """Store the head's transposed embedding as a separate weight; return whether it was tied.

    A tied head reads the embedding through a Transpose, which hides the weight from quantizers.
    """
    head = head_node(model)
    made_by = makers_of(model)
    turn = made_by.get(head.input[1]) if head is not None else None
    weights = weights_of(model)
    if head is None or turn is None or turn.op_type != "Transpose" or turn.input[0] not in weights:
        return False
    weight = np.ascontiguousarray(numpy_helper.to_array(weights[turn.input[0]]).T)
    model.graph.initializer.append(numpy_helper.from_array(weight, "lm_head.weight_transposed"))
    head.input[1] = "lm_head.weight_transposed"
    remove_unused(model)
    return True


def trim_logits(model: ModelProto) -> bool:
    """Add an optional input that limits the logits to the last positions, with the default "all".

    The head is a large part of a small model, and a prompt needs only its last position. The input is an overridable
    initializer, so a caller that does not know it gets all logits.

    Returns:
        Whether the graph has a head that supports this.
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
    logits = next(each for each in model.graph.output if each.name == "logits")
    logits.type.tensor_type.shape.dim[1].dim_param = "kept_length"
    return True


def name_shared_weights(model: ModelProto) -> None:
    """Undo the renaming of shared weights by the exporter, which stores equal ones once."""
    weights = {tensor.name for tensor in model.graph.initializer}
    same = {
        node.output[0]: node.input[0]
        for node in model.graph.node
        if node.op_type == "Identity" and node.input[0] in weights
    }
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = same.get(name, name)


def insert_before(model: ModelProto, node: NodeProto, nodes: Sequence[NodeProto]) -> None:
    """Insert nodes before one of the graph's."""
    index = next(i for i, each in enumerate(model.graph.node) if each.name == node.name)
    for offset, each in enumerate(nodes):
        model.graph.node.insert(index + offset, each)


def readers_of(model: ModelProto) -> dict[str, list[NodeProto]]:
    """Return the nodes that read each tensor."""
    found: dict[str, list[NodeProto]] = {}
    for node in model.graph.node:
        for name in set(node.input):
            found.setdefault(name, []).append(node)
    return found


def replace_nodes(model: ModelProto, instead: Mapping[str, Sequence[NodeProto]]) -> None:
    """Replace nodes, by name, with other nodes or none."""
    nodes = [each for node in model.graph.node for each in instead.get(node.name, [node])]
    _replace(model.graph.node, [copy_of(node) for node in nodes])


def remove_unused(model: ModelProto) -> None:
    """Remove nodes whose results are not read, and weights that no node reads."""
    graph = model.graph
    needed = {each.name for each in graph.output}
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(_reads(node))
    _replace(graph.node, reversed(kept))
    overridable = {each.name for each in graph.input}
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
    made_by = {name: copy_of(node) for node in donor.graph.node for name in node.output if name in results}
    weights = weights_of(donor)
    there = weights_of(target)
    for node in made_by.values():
        for index, name in enumerate(node.input):
            if name in weights:
                node.input[index] = _brought(target, weights[name], there)
        import_domain(target, node.domain)
    # A statically quantized graph rounds a result again before its use.
    rounded = {f"{name}_DequantizeLinear_Output": name for name in results}
    nodes: list[NodeProto] = []
    for node in target.graph.node:
        for index, name in enumerate(node.output):
            if name in results:
                nodes.append(made_by[name])
                node.output[index] = f"replaced.{name}"
        for index, name in enumerate(node.input):
            node.input[index] = rounded.get(name, name)
        nodes.append(node)
    _replace(target.graph.node, [copy_of(node) for node in nodes])
    remove_unused(target)


def _brought(target: ModelProto, tensor: TensorProto, there: dict[str, TensorProto]) -> str:
    """Add a tensor to a graph unless an equal one of that name exists; return its name."""
    own = TensorProto()
    own.CopyFrom(tensor)
    while there.get(own.name, own) != own:
        own.name += ".grafted"
    if own.name not in there:
        target.graph.initializer.append(own)
        there[own.name] = own
    return own.name


def note_types(model: ModelProto) -> None:
    """Declare products as floats, which shape inference cannot derive for ONNX Runtime's own operators."""
    noted = {each.name for each in (*model.graph.value_info, *model.graph.output)}
    model.graph.value_info.extend(
        helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, None)
        for node in model.graph.node
        if node.op_type == "MatMul" and node.output[0] not in noted
    )


def _keep(field: Any, names: Collection[str]) -> None:
    """Remove all items with other names in place, without copying large weights."""
    for index in reversed([at for at, each in enumerate(field) if each.name not in names]):
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
