"""Build the graph for rows without pads: fewer and larger operators than the one for any mask.

If no row has a pad, the place of a token in the cache is its position, so that `GroupQueryAttention` rotates by itself,
needs no mask, and takes queries, keys and values as one merged product. The file holds the graph for any mask; this one
is derived on loading, like ONNX Runtime's own optimizations, and computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.merge import merge_products
from llmtrack.onnx.names import COS, IN_PLACE, LAST, SIN, TOTAL
from llmtrack.onnx.norms import fuse_norms

_MASKS = frozenset({"attention_mask", "position_ids"})


@dataclass(frozen=True)
class Angles:
    """Rotary angles of a graph.

    Attributes:
        frequencies: (half the head's width) radians per position.
        magnitude: factor of cosine and sine.
    """

    frequencies: NDArray[np.float32]
    magnitude: float

    def tables(self, places: int) -> dict[str, NDArray[np.float32]]:
        """Return the (places, half the head's width) cosines and sines of the first places."""
        turns = np.arange(places, dtype=np.float32)[:, None] * self.frequencies
        factor = np.float32(self.magnitude)
        return {COS: np.cos(turns) * factor, SIN: np.sin(turns) * factor}


@dataclass(frozen=True)
class Unpadded:
    """A graph for rows without pads.

    Attributes:
        content: the serialized graph.
        angles: the source of its inputs `COS` and `SIN`.
    """

    content: bytes
    angles: Angles


def unpadded(model: ModelProto) -> Unpadded | None:
    """Derive the graph for rows without pads from an exported, possibly quantized, one, which is modified.

    Returns:
        None if not every layer has fused attention, or the weights do not fit into a message.
    """
    layers = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    pasts = sum(each.name.endswith(".key") for each in model.graph.input)
    weights = graph.weights_of(model)
    names = ("rotary.frequencies", "rotary.magnitude")
    if not layers or len(layers) != pasts or any(name not in weights for name in names):
        return None
    if graph.weight_bytes(model) > graph.MAX_EMBEDDED_BYTES:
        return None
    frequencies, magnitude = (numpy_helper.to_array(weights[name]) for name in names)
    graph.name_shared_weights(model)
    made_by = graph.makers_of(model)
    read = [[*(made_by[name].input[0] for name in node.input[:2]), node.input[2]] for node in layers]
    merged = merge_products(model, read)
    layers = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node, parts in zip(layers, read, strict=True):
        _rotate_inside(node, [merged[parts[0]], "", ""] if parts[0] in merged else parts)
    fuse_norms(model)
    _exchange_inputs(model, len(frequencies[0]))
    graph.remove_unused(model)
    if any(_MASKS & set(node.input) for node in model.graph.node):
        return None
    helper.set_model_props(model, {IN_PLACE: "yes"})
    return Unpadded(model.SerializeToString(), Angles(frequencies[0], float(magnitude)))


def _rotate_inside(attention: NodeProto, read: Sequence[str]) -> None:
    """Let the attention operator rotate its inputs: queries, keys and values, or all merged in the first."""
    settings = graph.settings_of(attention) | {"do_rotary": 1}
    attention.CopyFrom(
        helper.make_node(
            attention.op_type,
            [*read, *attention.input[3:5], LAST, TOTAL, COS, SIN],
            list(attention.output),
            name=attention.name,
            domain=attention.domain,
            **settings,
        )
    )


def _exchange_inputs(model: ModelProto, half: int) -> None:
    kept = [each for each in model.graph.input if each.name not in _MASKS]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.input.extend(
        [
            helper.make_tensor_value_info(LAST, TensorProto.INT32, ["batch_size"]),
            helper.make_tensor_value_info(TOTAL, TensorProto.INT32, []),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["places", half]) for name in (COS, SIN)),
        ]
    )
    graph.replace_nodes(model, {node.name: [] for node in model.graph.node if {COS, SIN} & set(node.output)})
