"""Changing a graph leaves what it computes as it was."""

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


def logits(model: ModelProto, tmp_path) -> np.ndarray:
    graph.save(model, tmp_path / "changed.onnx")
    return next_token_logits(OnnxDecoder(tmp_path / "changed.onnx"), IDS[0])


def test_linear_layers_are_those_with_a_weight(exported):
    model = graph.load(exported / MODEL_FILE)
    found = graph.linears(model)
    # Four layers of seven projections; the tied head hides behind a Transpose, and attention has no weight.
    assert len(found) == 28
    assert found[0].module == "model.layers.0.self_attn.q_proj"
    assert found[0].parameters == 128 * 128
    assert graph.untie_head(model)
    assert [each.module for each in graph.linears(model)][-1] == "lm_head"


def test_untying_the_head_changes_nothing(exported, tmp_path):
    model = graph.load(exported / MODEL_FILE)
    before = logits(model, tmp_path)
    graph.untie_head(model)
    assert logits(model, tmp_path) == pytest.approx(before, abs=1e-5)
    assert not graph.untie_head(model)


def test_only_the_logits_that_are_asked_for_are_computed(exported):
    decoder = OnnxDecoder(exported / MODEL_FILE)
    ids = np.array(IDS)
    everything, _ = decoder.run(ids, np.ones_like(ids))
    last, _ = decoder.run(ids, np.ones_like(ids), keep=1)
    assert everything.shape[:2] == (1, 6)
    assert last.shape[:2] == (1, 1)
    assert last[0, 0] == pytest.approx(everything[0, -1], abs=1e-5)


def test_one_that_does_not_know_the_input_gets_all_logits(exported):
    from transformers import AutoTokenizer

    ort_model = pytest.importorskip("optimum.onnxruntime").ORTModelForCausalLM
    model = ort_model.from_pretrained(str(exported), use_io_binding=False)
    inputs = AutoTokenizer.from_pretrained(str(exported))("Hello there", return_tensors="pt")
    assert model(**inputs).logits.shape[1] == inputs["input_ids"].shape[1]
    assert model.generate(**inputs, max_new_tokens=3, min_new_tokens=3).shape[1] == inputs["input_ids"].shape[1] + 3


def test_a_graft_takes_layers_from_another_version(exported, tmp_path):
    exact = graph.load(exported / MODEL_FILE)
    wrong = ModelProto()
    wrong.CopyFrom(exact)
    layer = graph.linears(wrong)[3]
    tensor = next(each for each in wrong.graph.initializer if each.name == layer.weight)
    tensor.CopyFrom(numpy_helper.from_array(np.zeros(layer.shape, dtype=np.float32), layer.weight))
    # The donor's weight needs a name of its own, as a quantizer gives it one.
    tensor.name = "zeros"
    next(each for each in wrong.graph.node if each.name == layer.node).input[1] = "zeros"
    before, spoiled = logits(exact, tmp_path), logits(wrong, tmp_path)
    assert np.abs(before - spoiled).max() > 0.01
    graph.graft(wrong, exact, {layer.result})
    assert logits(wrong, tmp_path) == pytest.approx(before, abs=1e-6)
    assert "zeros" not in {each.name for each in wrong.graph.initializer}


def doubled(weights: dict[str, float]) -> ModelProto:
    """A graph of two results, each one input times a weight of its own: by the weights' names and values."""
    floats = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "a", "b")}
    nodes = [helper.make_node("Mul", ["x", name], [out]) for name, out in zip(weights, "ab", strict=False)]
    if len(weights) == 1:
        nodes.append(helper.make_node("Mul", ["x", *weights], ["b"]))
    tensors = [numpy_helper.from_array(np.float32([value]), name) for name, value in weights.items()]
    inside = helper.make_graph(nodes, "g", [floats["x"]], [floats["a"], floats["b"]], tensors)
    return helper.make_model(inside)


def factors(model: ModelProto) -> dict[str, float]:
    """Return the weight of each result."""
    kept = {each.name: float(numpy_helper.to_array(each)[0]) for each in model.graph.initializer}
    assert len(kept) == len(model.graph.initializer)
    return {node.output[0]: kept[node.input[1]] for node in model.graph.node}


@pytest.mark.parametrize("shared", [False, True])
def test_a_graft_brings_its_own_weights_where_both_versions_call_them_alike(shared):
    # As 4 and 8 bits of one layer are called: the scales of both have one name.
    names = ["w"] if shared else ["w", "v"]
    made = doubled(dict.fromkeys(names, 1.0))
    graph.graft(made, doubled(dict.fromkeys(names, 2.0)), {"a"})
    assert factors(made) == {"a": 2.0, "b": 1.0}
    # And from a third version, over what the second left.
    graph.graft(made, doubled(dict.fromkeys(names, 3.0)), {"b"})
    assert factors(made) == {"a": 2.0, "b": 3.0}
    graph.graft(made, doubled(dict.fromkeys(names, 4.0)), {"a", "b"})
    assert factors(made) == {"a": 4.0, "b": 4.0}


def test_a_graft_of_equal_weights_stores_them_once():
    made = doubled({"w": 1.0})
    graph.graft(made, doubled({"w": 1.0}), {"a"})
    assert [each.name for each in made.graph.initializer] == ["w"]


def test_a_gemm_becomes_a_product_and_a_sum():
    weight, bias = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([1, 2, 3], dtype=np.float32)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="/h.0/attn/Gemm", transB=1)
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, None]) for name in "xy"]
    tensors = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")]
    model = helper.make_model(helper.make_graph([node], "g", floats[:1], floats[1:], tensors))
    graph.plain_products(model)
    assert [each.op_type for each in model.graph.node] == ["MatMul", "Add"]
    assert graph.linears(model)[0].node == "/h.0/attn/MatMul"
    kept = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    assert kept[model.graph.node[0].input[1]].tolist() == weight.T.tolist()
    assert "w" not in kept


def test_bytes_of_packed_tensors():
    assert graph.tensor_bytes(helper.make_tensor("a", TensorProto.UINT4, [6], [1] * 6)) == 3
    assert graph.tensor_bytes(helper.make_tensor("a", TensorProto.FLOAT, [2, 3], [0.0] * 6)) == 24
