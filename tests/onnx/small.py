"""Graphs of a few nodes."""

from __future__ import annotations

from onnx import TensorProto, helper, numpy_helper

from llmtrack.onnx import graph


def run(model, feeds):
    import onnxruntime

    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)


def small(nodes, weights, results, opset=18, rows=("rows",)):
    """Build a graph of float tensors with the input `x`, (*rows, 32)."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*rows, 32])]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [*rows, None]) for name in results]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(graph.MICROSOFT, 1)]
    small_graph = helper.make_graph(nodes, "small", inputs, outputs, tensors)
    return helper.make_model(small_graph, opset_imports=opsets, ir_version=9)
