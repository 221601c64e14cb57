"""Merge the products of queries, keys and values into one.

In a small model, the products of a step are so small that starting each, and synchronizing the threads after it,
matters. Blocks of few bits lie along the inputs, so concatenated weights are rounded as before: only the number of
operators changes. (Gate and up are not merged: the split after them costs what the merge saves.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.graph import makers_of, replace_nodes, settings_of, weights_of

_TENSORS = ("B", "scales", "zero_points")
_SETTINGS = ("K", "bits", "block_size", "accuracy_level")


@dataclass(frozen=True)
class _Product:
    """A product in blocks, and its additions.

    Attributes:
        node: the product.
        offset: the product with the blocks' offsets (see `offsets`).
        bias: name of the added initializer, or "".
    """

    node: NodeProto
    offset: NodeProto | None
    bias: str

    @property
    def settings(self) -> dict[str, Any]:
        """The product's attributes."""
        return settings_of(self.node)

    @property
    def alike(self) -> tuple[Any, ...]:
        """Key that must be equal for products to be merged."""
        settings = (self.settings.get(name) for name in _SETTINGS)
        sums = self.offset.input[0] if self.offset is not None else ""
        return (self.node.input[0], len(self.node.input), sums, bool(self.bias), *settings)


def merge_products(model: ModelProto, wanted: Iterable[Sequence[str]]) -> dict[str, str]:
    """Merge products in blocks (MatMulNBits) that read the same tensor and have equal settings.

    Args:
        model: modified in place.
        wanted: names of results to concatenate; the caller must not read them after a merge.

    Returns:
        The name of the merged result, by the first of the original results.
    """
    weights = weights_of(model)
    made_by = makers_of(model)
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


def _product(node: NodeProto, made_by: Mapping[str, NodeProto], weights: Mapping[str, TensorProto]) -> _Product | None:
    """Return the product, with its additions, that ends in a node; None if there is none."""
    bias, offset = "", None
    if node.op_type == "Add" and (constant := [name for name in node.input if name in weights]):
        bias = constant[0]
        node = made_by.get(next((name for name in node.input if name != bias), ""), node)
        if len(weights[bias].dims) != 1:
            return None
    if node.op_type == "Add" and (parts := [made_by.get(name) for name in node.input]):
        node, offset = (
            next((each for each in parts if each is not None and each.op_type == kind), node)
            for kind in ("MatMulNBits", "MatMul")
        )
        if offset.op_type != "MatMul" or offset.input[1] not in weights:
            return None
    if node.op_type != "MatMulNBits" or any(name not in weights for name in node.input[1:]):
        return None
    return _Product(node, offset, bias)


def _merged(
    model: ModelProto, name: str, group: Sequence[_Product], weights: Mapping[str, TensorProto]
) -> list[NodeProto]:
    """Add a group's concatenated weights to the graph; return the nodes that replace the group."""

    def beside(parts: Sequence[str], part: str) -> str:
        arrays = [numpy_helper.to_array(weights[each]) for each in parts]
        # Offsets are stored as (blocks, outputs).
        joined = np.concatenate(arrays, axis=1 if part == "offsets" else 0)
        model.graph.initializer.append(numpy_helper.from_array(joined, f"{name}.{part}"))
        return f"{name}.{part}"

    first = group[0].node
    widths = [each.settings["N"] for each in group]
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
    if group[0].offset is not None:
        offsets = beside([each.offset.input[1] for each in group if each.offset is not None], "offsets")
        nodes += [
            helper.make_node(
                "MatMul",
                [group[0].offset.input[0], offsets],
                [f"{name}.offset"],
                name=f"{place}/{joined}/offset",
            ),
            helper.make_node(
                "Add",
                [whole, f"{name}.offset"],
                [f"{name}.with_offset"],
                name=f"{place}/{joined}/with_offset",
            ),
        ]
    if group[0].bias:
        bias = beside([each.bias for each in group], "bias")
        nodes.append(
            helper.make_node("Add", [nodes[-1].output[0], bias], [f"{name}.sum"], name=f"{place}/{joined}/Add")
        )
    return nodes
