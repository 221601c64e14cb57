"""Move fractional zero points into a small separate product, so that the rest uses the fast kernel.

ONNX Runtime's kernel of 8-bit products requires integer zero points; otherwise it dequantizes the weights in each call,
at a fourteenth of the speed. A block's weights are `scale * (q - zero) = scale * (q - middle) + scale * (middle -
zero)`, and the second part is constant within the block: its product only needs the sum of the inputs per block.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, helper, numpy_helper

from llmtrack.onnx.graph import MICROSOFT, replace_nodes, settings_of, weights_of


def split_zero_points(model: ModelProto, accuracy_level: int) -> int:
    """Split products in blocks (MatMulNBits) with float zero points; others are unchanged.

    Args:
        model: modified in place.
        accuracy_level: of the products with integer zero points that replace them.

    Returns:
        The number of split products.
    """
    weights = weights_of(model)
    instead: dict[str, list[NodeProto]] = {}
    sums: dict[tuple[str, int], str] = {}
    for node in model.graph.node:
        if node.op_type != "MatMulNBits" or len(node.input) < 4 or node.input[3] not in weights:
            continue
        zeros = numpy_helper.to_array(weights[node.input[3]])
        settings = settings_of(node)
        width, block = settings["K"], settings["block_size"]
        if zeros.dtype.kind != "f" or width % block:
            continue
        nodes: list[NodeProto] = []
        if (node.input[0], block) not in sums:
            sums[node.input[0], block], nodes = _block_sums(model, node.input[0], width, block)
        scales = numpy_helper.to_array(weights[node.input[2]])
        offsets = ((2 ** (settings["bits"] - 1) - zeros) * scales).reshape(settings["N"], width // block)
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(offsets.T), f"{node.name}.offsets"))
        whole, offset = f"{node.name}.whole", f"{node.name}.offset"
        instead[node.name] = [
            *nodes,
            helper.make_node(
                "MatMulNBits",
                node.input[:3],
                [whole],
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
            helper.make_node("Add", [whole, offset], node.output, name=f"{node.name}/with_offset"),
        ]
    replace_nodes(model, instead)
    return len(instead)


def _block_sums(model: ModelProto, inputs: str, width: int, block: int) -> tuple[str, list[NodeProto]]:
    """Return the name of an activation's block sums, (rows, tokens, blocks), and the nodes that compute them."""
    name = f"{inputs}.sums_of_{block}"
    shape, axis = np.array([0, 0, width // block, block]), np.array([-1])
    for part, array in (("shape", shape), ("axis", axis)):
        model.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{part}"))
    return name, [
        helper.make_node("Reshape", [inputs, f"{name}.shape"], [f"{name}.blocks"], name=f"{name}/Reshape"),
        helper.make_node("ReduceSum", [f"{name}.blocks", f"{name}.axis"], [name], name=f"{name}/ReduceSum", keepdims=0),
    ]
