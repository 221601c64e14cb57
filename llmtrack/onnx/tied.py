"""Store a tied embedding once in a quantized model: lookups read the head's weight."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper, numpy_helper

from llmtrack.onnx.graph import MICROSOFT, insert_before, makers_of, remove_unused, settings_of, weights_of


def share_embedding(model: ModelProto) -> bool:
    """Replace the float embedding table by lookups in the head's blocks.

    Only for models with a tied head: both hold the same numbers.

    Returns:
        Whether it was done: the head must be in blocks without zero points.
    """
    made_by = makers_of(model)
    head = made_by["logits"]
    settings = settings_of(head)
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
