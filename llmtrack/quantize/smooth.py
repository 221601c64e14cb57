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


def smooth(model: ModelProto, ranges: Mapping[str, Array]) -> int:
    """Balance the range of channels between layer inputs (see `channel_ranges`) and weights, in place.

    Returns the number of smoothed inputs.
    """
    graph.name_shared_weights(model)
    weights = graph.weights_of(model)
    producers = graph.producers_of(model)
    consumers = graph.consumers_of(model)
    linear = {layer.node for layer in graph.linears(model)}
    changed: dict[tuple[str, int], tuple[NodeProto, Array]] = {}

    def value(node: NodeProto, place: int) -> Array:
        change = changed.get((node.name, place))
        return change[1] if change else numpy_helper.to_array(weights[node.input[place]])

    def divisor(product: NodeProto | None) -> tuple[NodeProto, int] | None:
        """Return a node and the index of its input that can divide the channels: a vector, or a weight's columns."""
        if product is None or product.op_type != "Mul":
            return None
        for place, name in enumerate(product.input):
            if name in weights and len(weights[name].dims) == 1:
                return product, place
        for name in reversed(product.input):
            node = producers.get(name)
            if node is not None and node.name in linear and len(consumers[name]) == 1:
                return node, 1
        return None

    smoothed = 0
    for source, largest in ranges.items():
        producer, layers = divisor(producers.get(source)), consumers[source]
        if producer is None or any(node.name not in linear for node in layers):
            continue
        factor = _factor(largest, np.max([np.abs(value(node, 1)).max(axis=1) for node in layers], axis=0))
        changed[producer[0].name, producer[1]] = producer[0], value(*producer) / factor
        for node in layers:
            changed[node.name, 1] = node, value(node, 1) * factor[:, None]
        smoothed += 1
    for (name, place), (node, array) in changed.items():
        node.input[place] = f"{name}.smooth"
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), f"{name}.smooth"))
    graph.remove_unused(model)
    return smoothed


def channel_ranges(calls: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the largest magnitude of each channel over calls of (tokens, inputs), by the name of the layer input."""
    ranges: dict[str, Array] = {}
    for inputs in calls:
        for name, values in inputs.items():
            magnitude = np.abs(values).max(axis=0)
            ranges[name] = np.maximum(ranges[name], magnitude) if name in ranges else magnitude
    return ranges


def _factor(inputs: Array, weights: Array) -> Array:
    """Return divisors that equalize the largest value of each channel and of its weights."""
    nonzero = (inputs > 0) & (weights > 0)
    return np.sqrt(np.where(nonzero, inputs, 1) / np.where(nonzero, weights, 1))
