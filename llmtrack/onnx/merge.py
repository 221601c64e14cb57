"""Make one product of those that make queries, keys and values.

A step of a small model is made of products so small that starting one, and waiting for all threads to be done with it, counts.
Blocks of few bits lie along the inputs, so that what is put side by side is rounded as it was: nothing changes but the
number of operators. (Gate and up are left apart: the split behind them costs what one product less wins.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.graph import replace_nodes

_TENSORS = ("B", "scales", "zero_points")
_SETTINGS = ("K", "bits", "block_size", "accuracy_level")


@dataclass(frozen=True)
class _Product:
    """A product in blocks, and the bias that may be added to it.

    Attributes:
        node: the product.
        bias: name of the initializer that is added, or "".
    """

    node: NodeProto
    bias: str

    @property
    def settings(self) -> dict[str, Any]:
        """The product's attributes."""
        return {each.name: helper.get_attribute_value(each) for each in self.node.attribute}

    @property
    def alike(self) -> tuple[Any, ...]:
        """What products must have in common to become one."""
        told = (self.settings.get(name) for name in _SETTINGS)
        return (self.node.input[0], len(self.node.input), bool(self.bias), *told)


def merge_products(model: ModelProto, wanted: Iterable[Sequence[str]]) -> dict[str, str]:
    """Merge products in blocks (MatMulNBits) that read the same tensor and are alike.

    Args:
        model: is changed.
        wanted: names of the results that are to be made as one, side by side, and that the caller reads no more if they are.

    Returns:
        For the first result of those that were merged, the name of the one result.
    """
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, str] = {}
    instead: dict[str, list[NodeProto]] = {}
    for number, results in enumerate(wanted):
        group = [_product(made_by[name], made_by, weights) for name in results]
        if None in group or len({each.alike for each in group if each is not None}) > 1:
            continue
        nodes = _merged(model, f"merged.{number}", [each for each in group if each is not None], weights)
        instead[made_by[results[0]].name] = [*nodes, made_by[results[0]]]
        found[results[0]] = nodes[-1].output[0]
    replace_nodes(model, instead)
    return found


def _product(
    node: NodeProto, made_by: Mapping[str, NodeProto], weights: Mapping[str, TensorProto]
) -> _Product | None:
    """Return the product, and the bias behind it, that a node ends; None if it ends something else."""
    bias = ""
    if node.op_type == "Add":
        (bias, *others), sums = [name for name in node.input if name in weights] or [""], node
        node = made_by.get(next((name for name in sums.input if name != bias), ""), sums)
        if others or not bias or len(weights[bias].dims) != 1:
            return None
    if node.op_type != "MatMulNBits" or any(name not in weights for name in node.input[1:]):
        return None
    return _Product(node, bias)


def _width(node: NodeProto) -> int:
    return next(int(each.i) for each in node.attribute if each.name == "N")


def _merged(
    model: ModelProto, name: str, group: Sequence[_Product], weights: Mapping[str, TensorProto]
) -> list[NodeProto]:
    """Add the weights of a group, side by side, to the graph, and return the nodes that do the same as the group."""

    def beside(parts: Sequence[str], part: str) -> str:
        arrays = [numpy_helper.to_array(weights[each]) for each in parts]
        model.graph.initializer.append(numpy_helper.from_array(np.concatenate(arrays), f"{name}.{part}"))
        return f"{name}.{part}"

    first = group[0].node
    widths = [_width(each.node) for each in group]
    tensors = [
        beside([each.node.input[place] for each in group], part)
        for place, part in enumerate(_TENSORS[: len(first.input) - 1], start=1)
    ]
    settings = group[0].settings | {"N": sum(widths)}
    joined = "+".join(each.node.name.strip("/").split("/")[-2] for each in group)
    place = first.name.rsplit("/", 2)[0]
    whole = f"{name}.output"
    nodes = [
        helper.make_node(
            "MatMulNBits",
            [first.input[0], *tensors],
            [whole],
            name=f"{place}/{joined}/MatMul",
            domain=first.domain,
            **settings,
        )
    ]
    if group[0].bias:
        bias = beside([each.bias for each in group], "bias")
        nodes.append(helper.make_node("Add", [whole, bias], [f"{name}.sum"], name=f"{place}/{joined}/Add"))
    return nodes
