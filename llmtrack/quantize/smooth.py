"""Shift outliers from activations into weights, which are rounded per column (SmoothQuant, arXiv:2211.10438).

A few channels of a layer's input are many times as large as all others, for every token. Each channel is divided by a
factor, and the weight that reads it is multiplied by it, so the graph computes the same. It costs nothing at run time,
since the division is folded into the producer of the channel: the weight of the preceding norm, or the columns of a
product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, numpy_helper

from llmtrack.onnx import graph

Array = NDArray[np.float32]


def smooth(model: ModelProto, given: Mapping[str, Array]) -> int:
    """Balance the range of channels between layer inputs and weights.

    Args:
        model: modified in place, to an equivalent float model.
        given: the largest magnitude of each channel, by the name of the layer input. Other layers stay as they are.

    Returns:
        The number of smoothed inputs.
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
        """Return the node and the index of its input by which channels can be divided: a vector, or columns of a
        weight.
        """
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
    """Return the largest magnitude of each channel over calls of (tokens, inputs), by the name of the layer input."""
    found: dict[str, Array] = {}
    for call in given:
        for name, values in call.items():
            size = np.abs(values).max(axis=0)
            found[name] = np.maximum(found[name], size) if name in found else size
    return found


def _factor(given: Array, weight: Array) -> Array:
    """Return divisors that equalize the largest value of each channel and of its weights."""
    known = (given > 0) & (weight > 0)
    return np.sqrt(np.where(known, given, 1) / np.where(known, weight, 1))
