"""Rewrite products in blocks of few bits (MatMulNBits) for speed and size: merge, split zero points, share an embedding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.graph import (
    MICROSOFT,
    attributes_of,
    insert_before,
    producers_of,
    remove_unused,
    replace_nodes,
    weights_of,
)

_WEIGHTS = ("B", "scales", "zero_points")
_SETTINGS = ("K", "bits", "block_size", "accuracy_level")


@dataclass(frozen=True)
class _Product:
    """A product in blocks, its product with the blocks' offsets (see `split_zero_points`), and its bias's name or ""."""

    node: NodeProto
    offset: NodeProto | None
    bias: str

    @property
    def settings(self) -> dict[str, Any]:
        return attributes_of(self.node)

    @property
    def key(self) -> tuple[Any, ...]:
        """What must be equal for products to be merged."""
        settings = (self.settings.get(name) for name in _SETTINGS)
        sums = self.offset.input[0] if self.offset is not None else ""
        return (self.node.input[0], len(self.node.input), sums, bool(self.bias), *settings)


def merge_products(model: ModelProto, groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Merge products in blocks (MatMulNBits) that read the same tensor and have equal settings.

    In a small model, the products of a step are so small that starting each, and synchronizing the threads after it,
    matters. Blocks of few bits lie along the inputs, so concatenated weights are rounded as before: only the number of
    operators changes. (Gate and up are not merged: the split after them costs what the merge saves.)

    Args:
        model: modified in place.
        groups: names of results to concatenate; the caller must not read them after a merge.

    Returns:
        The name of each merged result, by the first of its original results.
    """
    weights = weights_of(model)
    producers = producers_of(model)
    merged: dict[str, str] = {}
    replacements: dict[str, list[NodeProto]] = {}
    for number, results in enumerate(groups):
        products = [
            product for name in results if (product := _product(producers[name], producers, weights)) is not None
        ]
        if len(products) < len(results) or len({product.key for product in products}) > 1:
            continue
        nodes = _merge(model, f"merged.{number}", products, weights)
        replacements[producers[results[0]].name] = [*nodes, producers[results[0]]]
        merged[results[0]] = nodes[-1].output[0]
    replace_nodes(model, replacements)
    return merged


def _product(
    node: NodeProto, producers: Mapping[str, NodeProto], weights: Mapping[str, TensorProto]
) -> _Product | None:
    """Return the product, with its additions, that ends in a node, or None."""
    bias, offset = "", None
    if node.op_type == "Add" and (constant := [name for name in node.input if name in weights]):
        bias = constant[0]
        node = producers.get(next((name for name in node.input if name != bias), ""), node)
        if len(weights[bias].dims) != 1:
            return None
    if node.op_type == "Add" and (parts := [producers.get(name) for name in node.input]):
        node, offset = (
            next((part for part in parts if part is not None and part.op_type == op_type), node)
            for op_type in ("MatMulNBits", "MatMul")
        )
        if offset.op_type != "MatMul" or offset.input[1] not in weights:
            return None
    if node.op_type != "MatMulNBits" or any(name not in weights for name in node.input[1:]):
        return None
    return _Product(node, offset, bias)


def _merge(
    model: ModelProto, name: str, products: Sequence[_Product], weights: Mapping[str, TensorProto]
) -> list[NodeProto]:
    """Add the products' concatenated weights to the graph; return the nodes that replace the products."""

    def concatenated(names: Sequence[str], part: str) -> str:
        arrays = [numpy_helper.to_array(weights[weight]) for weight in names]
        # Offsets are stored as (blocks, outputs).
        array = np.concatenate(arrays, axis=1 if part == "offsets" else 0)
        model.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{part}"))
        return f"{name}.{part}"

    first = products[0]
    tensors = [
        concatenated([product.node.input[index] for product in products], part)
        for index, part in enumerate(_WEIGHTS[: len(first.node.input) - 1], start=1)
    ]
    settings = first.settings | {"N": sum(product.settings["N"] for product in products)}
    modules = "+".join(product.node.name.strip("/").split("/")[-2] for product in products)
    path = f"{first.node.name.rsplit('/', 2)[0]}/{modules}"
    output = f"{name}.output"
    nodes = [
        helper.make_node(
            "MatMulNBits",
            [first.node.input[0], *tensors],
            [output],
            name=f"{path}/MatMul",
            domain=first.node.domain,
            **settings,
        )
    ]
    if first.offset is not None:
        offsets = concatenated(
            [product.offset.input[1] for product in products if product.offset is not None], "offsets"
        )
        sums, offset, total = first.offset.input[0], f"{name}.offset", f"{name}.with_offset"
        nodes += [
            helper.make_node("MatMul", [sums, offsets], [offset], name=f"{path}/offset"),
            helper.make_node("Add", [output, offset], [total], name=f"{path}/with_offset"),
        ]
    if first.bias:
        bias = concatenated([product.bias for product in products], "bias")
        nodes.append(helper.make_node("Add", [nodes[-1].output[0], bias], [f"{name}.sum"], name=f"{path}/Add"))
    return nodes


def split_zero_points(model: ModelProto, accuracy_level: int) -> int:
    """Split products in blocks (MatMulNBits) with float zero points; others are unchanged.

    ONNX Runtime's kernel of 8-bit products requires integer zero points; otherwise it dequantizes the weights in each
    call, at a fourteenth of the speed. A block's weights are `scale * (q - zero) = scale * (q - middle) + scale *
    (middle - zero)`, and the second part is constant within the block: its product only needs the sum of the inputs per
    block.

    `accuracy_level` is that of the products with integer zero points. Returns the number of split products.
    """
    weights = weights_of(model)
    replacements: dict[str, list[NodeProto]] = {}
    sums: dict[tuple[str, int], str] = {}
    for node in model.graph.node:
        if node.op_type != "MatMulNBits" or len(node.input) < 4 or node.input[3] not in weights:
            continue
        zeros = numpy_helper.to_array(weights[node.input[3]])
        settings = attributes_of(node)
        width, block = settings["K"], settings["block_size"]
        if zeros.dtype.kind != "f" or width % block:
            continue
        nodes: list[NodeProto] = []
        if (node.input[0], block) not in sums:
            sums[node.input[0], block], nodes = _block_sums(model, node.input[0], width, block)
        scales = numpy_helper.to_array(weights[node.input[2]])
        offsets = ((2 ** (settings["bits"] - 1) - zeros) * scales).reshape(settings["N"], width // block)
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(offsets.T), f"{node.name}.offsets"))
        product, offset = f"{node.name}.whole", f"{node.name}.offset"
        replacements[node.name] = [
            *nodes,
            helper.make_node(
                "MatMulNBits",
                node.input[:3],
                [product],
                name=node.name,
                domain=MICROSOFT,
                **settings | {"accuracy_level": accuracy_level},
            ),
            helper.make_node(
                "MatMul",
                [sums[node.input[0], block], f"{node.name}.offsets"],
                [offset],
                name=f"{node.name}/offset",
            ),
            helper.make_node("Add", [product, offset], node.output, name=f"{node.name}/with_offset"),
        ]
    replace_nodes(model, replacements)
    return len(replacements)


def _block_sums(model: ModelProto, inputs: str, width: int, block: int) -> tuple[str, list[NodeProto]]:
    """Return the name of an activation's sums per block, (rows, tokens, blocks), and the nodes that compute them."""
    name = f"{inputs}.sums_of_{block}"
    shape, axis = np.array([0, 0, width // block, block]), np.array([-1])
    for part, array in (("shape", shape), ("axis", axis)):
        model.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{part}"))
    return name, [
        helper.make_node("Reshape", [inputs, f"{name}.shape"], [f"{name}.blocks"], name=f"{name}/Reshape"),
        helper.make_node("ReduceSum", [f"{name}.blocks", f"{name}.axis"], [name], name=f"{name}/ReduceSum", keepdims=0),
    ]


def share_embedding(model: ModelProto) -> bool:
    """Replace the float embedding of a model with a tied head by lookups in the head's blocks.

    Returns whether it was possible: the head must be in blocks without zero points.
    """
    head = producers_of(model)["logits"]
    settings = attributes_of(head)
    weights = weights_of(model)
    lookups = [
        node
        for node in model.graph.node
        if node.op_type == "Gather" and node.input[0] in weights and "input_ids" in node.input[1:]
    ]
    if head.op_type != "MatMulNBits" or len(head.input) > 3 or len(lookups) != 1:
        return False
    rows, width, block, bits = (settings[name] for name in ("N", "K", "block_size", "bits"))
    if width % block:
        return False
    lookup = lookups[0]
    table, scales = head.input[1], head.input[2]
    flat = numpy_helper.to_array(weights[table]).reshape(rows, width * bits // 8)
    weights[table].CopyFrom(numpy_helper.from_array(flat, table))
    quantized = helper.make_node(
        "GatherBlockQuantized",
        [table, lookup.input[1], scales],
        [lookup.output[0]],
        name=lookup.name,
        domain=MICROSOFT,
        gather_axis=0,
        quantize_axis=1,
        block_size=block,
        bits=bits,
    )
    lookup.CopyFrom(quantized)
    # The product needs the same numbers by blocks; ONNX Runtime reshapes a weight once, on loading.
    shape = numpy_helper.from_array(np.array([rows, width // block, block * bits // 8]), f"{table}.shape")
    model.graph.initializer.append(shape)
    head.input[1] = f"{table}.blocks"
    node = helper.make_node("Reshape", [table, shape.name], [head.input[1]], name="tied/Reshape")
    insert_before(model, head, [node])
    remove_unused(model)
    return True
