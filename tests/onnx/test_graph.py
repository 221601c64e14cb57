"""Transformations of a graph preserve its results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import ModelProto, TensorProto, helper, numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder, next_token_logits

IDS = [[5, 17, 99, 200, 3, 7]]


def logits(model: ModelProto) -> np.ndarray:
    return next_token_logits(OnnxDecoder(model), IDS[0])


def test_linear_layers_are_matmuls_with_a_weight(exported):
    model = graph.load(exported / MODEL_FILE)
    layers = graph.linears(model)
    # Four layers of seven projections; the tied head reads a Transpose, and products of attention have no weight.
    assert len(layers) == 28
    assert layers[0].module == "model.layers.0.self_attn.q_proj"
    assert layers[0].parameters == 128 * 128
    assert graph.untie_head(model)
    assert graph.linears(model)[-1].module == "lm_head"


def test_untying_the_head_preserves_the_logits(exported):
    model = graph.load(exported / MODEL_FILE)
    before = logits(model)
    graph.untie_head(model)
    assert logits(model) == pytest.approx(before, abs=1e-5)
    assert not graph.untie_head(model)


def test_only_the_requested_logits_are_computed(exported):
    decoder = OnnxDecoder(exported / MODEL_FILE)
    ids = np.array(IDS)
    every, _ = decoder.run(ids, np.ones_like(ids))
    last, _ = decoder.run(ids, np.ones_like(ids), keep=1)
    assert every.shape[:2] == (1, 6)
    assert last.shape[:2] == (1, 1)
    assert last[0, 0] == pytest.approx(every[0, -1], abs=1e-5)


def test_a_caller_that_does_not_know_the_input_gets_all_logits(exported):
    from transformers import AutoTokenizer

    ort_model = pytest.importorskip("optimum.onnxruntime").ORTModelForCausalLM
    model = ort_model.from_pretrained(str(exported), use_io_binding=False)
    inputs = AutoTokenizer.from_pretrained(str(exported))("Hello there", return_tensors="pt")
    assert model(**inputs).logits.shape[1] == inputs["input_ids"].shape[1]
    assert model.generate(**inputs, max_new_tokens=3, min_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3


def test_a_graft_takes_layers_from_another_version(exported):
    exact = graph.load(exported / MODEL_FILE)
    wrong = graph.copy_of(exact)
    layer = graph.linears(wrong)[3]
    tensor = graph.weights_of(wrong)[layer.weight]
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(layer.shape, dtype=np.float32), layer.weight))
    # Renamed, as by a quantizer.
    tensor.name = "zeros"
    next(node for node in wrong.graph.node if node.name == layer.node).input[1] = "zeros"
    expected = logits(exact)
    assert np.abs(expected - logits(wrong)).max() > 0.01
    graph.graft(wrong, exact, {layer.result})
    assert logits(wrong) == pytest.approx(expected, abs=1e-6)
    assert "zeros" not in graph.weights_of(wrong)


def products(weights: dict[str, float]) -> ModelProto:
    """Build a graph of two results, each the input times a weight: one of two, or the same."""
    floats = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "a", "b")}
    nodes = [helper.make_node("Mul", ["x", name], [out]) for name, out in zip(weights, "ab", strict=False)]
    if len(weights) == 1:
        nodes.append(helper.make_node("Mul", ["x", *weights], ["b"]))
    tensors = [numpy_helper.from_array(np.float32([value]), name) for name, value in weights.items()]
    return helper.make_model(helper.make_graph(nodes, "g", [floats["x"]], [floats["a"], floats["b"]], tensors))


def factors(model: ModelProto) -> dict[str, float]:
    """Return the weight of each result."""
    weights = graph.weights_of(model)
    assert len(weights) == len(model.graph.initializer)
    return {node.output[0]: float(numpy_helper.to_array(weights[node.input[1]])[0]) for node in model.graph.node}


@pytest.mark.parametrize("shared", [False, True])
def test_a_graft_brings_its_own_weights_under_equal_names(shared):
    # Such as the scales of a layer in 4 and in 8 bits.
    names = ["w"] if shared else ["w", "v"]
    model = products(dict.fromkeys(names, 1.0))
    graph.graft(model, products(dict.fromkeys(names, 2.0)), {"a"})
    assert factors(model) == {"a": 2.0, "b": 1.0}
    # A third version, over the rest of the second.
    graph.graft(model, products(dict.fromkeys(names, 3.0)), {"b"})
    assert factors(model) == {"a": 2.0, "b": 3.0}
    graph.graft(model, products(dict.fromkeys(names, 4.0)), {"a", "b"})
    assert factors(model) == {"a": 4.0, "b": 4.0}


def test_a_graft_of_equal_weights_stores_them_once():
    model = products({"w": 1.0})
    graph.graft(model, products({"w": 1.0}), {"a"})
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]


def test_a_gemm_becomes_a_product_and_a_sum():
    weight, bias = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1, 2, 3], dtype=np.float32)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="/h.0/attn/Gemm", transB=1)
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy"]
    tensors = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    model = helper.make_model(helper.make_graph([node], "g", floats[:1], floats[1:], tensors))
    graph.plain_products(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Add"]
    assert graph.linears(model)[0].node == "/h.0/attn/MatMul"
    weights = graph.weights_of(model)
    assert numpy_helper.to_array(weights[model.graph.node[0].input[1]]).tolist() == weight.T.tolist()
    assert "w" not in weights


def test_bytes_of_packed_tensors():
    assert graph.tensor_bytes(helper.make_tensor("a", TensorProto.UINT4, [6], [1] * 6)) == 3
    assert graph.tensor_bytes(helper.make_tensor("a", TensorProto.FLOAT, [2, 3], [0.0] * 6)) == 24
