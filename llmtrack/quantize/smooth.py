"""Move what makes activations hard to round into weights, which are rounded column by column (SmoothQuant, arXiv:2211.10438).

A few channels of what a layer reads are many times as large as all others, for every token. Each channel is divided by a number,
and the weight that reads it multiplied by the same: the graph says what it said. Nothing is computed more, since the number is
divided out of what makes the channel: the weight of the norm before, or the columns of the product that it is multiplied by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from llmtrack.onnx import graph

Array = NDArray[np.float32]


def smooth(model: ModelProto, given: Mapping[str, Array]) -> int:
    """Share the spread of channels between what layers read and their weights, to equal parts.

    Args:
        model: is changed, to one that says the same in float.
        given: by name of what layers read, the largest size of each channel. Other layers stay as they are.

    Returns:
        How many of these could be smoothed.
    """
    graph.name_shared_weights(model)
    weights = graph.weights_of(model)
    made_by = graph.makers_of(model)
    readers = graph.readers_of(model)
    linear = {layer.node for layer in graph.linears(model)}
    changed: dict[tuple[str, int], tuple[NodeProto, Array]] = {}

    def value(node: NodeProto, place: int) -> Array:
        found = changed.get((node.name, place))
        return found[1] if found else numpy_helper.to_array(weights[node.input[place]])

    def divisor(product: NodeProto | None) -> tuple[NodeProto, int] | None:
        """Return the node and the input of it by which channels can be divided: a vector, or columns of a weight."""
        if product is None or product.op_type != "Mul":
            return None
        for place, name in enumerate(product.input):
            if name in weights and len(weights[name].dims) == 1:
                return product, place
        for name in reversed(product.input):
            node = made_by.get(name)
            if node is not None and node.name in linear and len(readers[name]) == 1:
                return node, 1
        return None

    done = 0
    for source, largest in given.items():
        before, group = divisor(made_by.get(source)), readers[source]
        if before is None or any(node.name not in linear for node in group):
            continue
        factor = _factor(largest, np.max([np.abs(value(node, 1)).max(axis=1) for node in group], axis=0))
        changed[before[0].name, before[1]] = before[0], value(*before) / factor
        for node in group:
            changed[node.name, 1] = node, value(node, 1) * factor[:, None]
        done += 1
    for (name, place), (node, array) in changed.items():
        node.input[place] = f"{name}.smooth"
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.smooth"))
    graph.remove_unused(model)
    return done


def largest_of(given: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Return by name the largest size of each channel of what layers are given, (tokens, inputs) in each call."""
    found: dict[str, Array] = {}
    for call in given:
        for name, values in call.items():
            size = np.abs(values).max(axis=0)
            found[name] = np.maximum(found[name], size) if name in found else size
    return found


def _factor(given: Array, weight: Array) -> Array:
    """Return what to divide channels by, so that the largest value of each and of its weights become equal."""
    known = (given > 0) & (weight > 0)
    return np.sqrt(np.where(known, given, 1) / np.where(known, weight, 1))
