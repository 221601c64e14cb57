"""Rows without pads run in a graph of fewer operators, which says what the other says."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
import onnx
from onnx import TensorProto, helper

from llmtrack.onnx import graph, session
from llmtrack.onnx.matmul_nbits import merge_products
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder
from llmtrack.onnx.unpadded import fuse_norms, unpadded
from llmtrack.quantize.weight_only import in_blocks
from tests.onnx.small import run, small

IDS = np.random.default_rng(0).integers(3, 500, (2, 12))
RANDOM = np.random.default_rng(1)


def logits(decoder: OnnxDecoder, mask: np.ndarray, places: int = 0) -> np.ndarray:
    """Logits of the first tokens at once, and of the last four one by one from the cache."""
    found, cache = decoder.run(IDS[:, :8], mask[:, :8], places=places)
    parts = [found]
    for at in range(8, IDS.shape[1]):
        found, cache = decoder.run(IDS[:, at : at + 1], mask[:, : at + 1], cache, keep=1)
        parts.append(found)
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module")
def plain(exported):
    """The graph that takes any mask, as it is."""
    return OnnxDecoder(exported / MODEL_FILE, graph_optimization="basic")


@pytest.fixture(scope="module")
def fused(exported):
    return OnnxDecoder(exported / MODEL_FILE, floats=True)


@pytest.mark.parametrize("places", [0, 8, 12, 40])
def test_it_says_the_same_whatever_room_the_cache_has(plain, fused, places):
    assert fused.has_unpadded
    mask = np.ones_like(IDS)
    assert np.abs(logits(fused, mask, places) - logits(plain, mask)).max() <= 1e-4


@pytest.mark.slow(1)
def test_pads_and_no_pads_take_turns(plain, fused):
    pads = np.ones_like(IDS)
    pads[0, :3] = 0
    real = pads.astype(bool)
    for mask in (pads, np.ones_like(IDS), pads):
        expected, found = (logits(decoder, mask)[real] for decoder in (plain, fused))
        assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow(1)
def test_a_cache_lives_on_where_the_graph_was_another_in_between(plain, fused):
    whole, pads = np.ones_like(IDS), np.ones_like(IDS)
    pads[0, 0] = 0
    _, cache = fused.run(IDS[:, :8], whole[:, :8], keep=1, places=12)
    fused.run(IDS, pads, keep=1)
    found, _ = fused.run(IDS[:, 8:9], whole[:, :9], cache, keep=1)
    expected, _ = plain.run(IDS[:, :9], whole[:, :9], keep=1)
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow(1)
def test_flash_attention_is_for_long_prompts_and_said_to_no_other_session(plain, exported, monkeypatch):
    made = []
    inner = session._attention
    monkeypatch.setattr(session, "_attention", lambda flash: made.append(flash) or inner(flash))
    monkeypatch.setattr(session, "_MOST_SCORES", 2 * 8 * 8)
    decoder = OnnxDecoder(exported / MODEL_FILE, floats=True)
    mask = np.ones_like(IDS)
    expected = logits(plain, mask)
    assert np.abs(logits(decoder, mask) - expected).max() <= 1e-4
    assert made == [False]
    _, cache = decoder.run(IDS[:, :8], mask[:, :8], places=12)
    long, _ = decoder.run(IDS, mask)
    assert made == [False, True]
    assert long[:, -1] == pytest.approx(expected[:, -1], abs=1e-4)
    # It stays so, and what was read before is not lost.
    found, _ = decoder.run(IDS[:, 8:9], mask[:, :9], cache, keep=1)
    assert found[:, 0] == pytest.approx(expected[:, 8], abs=1e-4)
    assert made == [False, True]
    assert "ORT_GQA_DISABLE_FLASH_ATTENTION" not in os.environ


def test_what_the_user_said_of_flash_attention_holds(monkeypatch):
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    for flash in (True, False):
        with session._attention(flash):
            assert os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] == "0"


def test_a_layer_of_it_has_half_the_operators(exported):
    model = graph.load(exported / MODEL_FILE)
    assert graph.untie_head(model)
    quantized = in_blocks(model, 8, 32, True, {each.node for each in graph.linears(model)})
    before = Counter(node.op_type for node in quantized.graph.node)
    made = unpadded(quantized)
    assert made is not None
    counts = Counter(node.op_type for node in onnx.load_from_string(made.content).graph.node)
    # Four layers: queries, keys and values are one product; attention rotates; seven of eight norms follow a sum, and the last.
    assert (before["MatMulNBits"], counts["MatMulNBits"]) == (4 * 7 + 1, 4 * 5 + 1)
    assert (before["RotaryEmbedding"], counts["RotaryEmbedding"]) == (8, 0)
    assert counts["SkipSimplifiedLayerNormalization"] == 8
    assert counts["GroupQueryAttention"] == 4
    assert sum(counts.values()) < 0.6 * sum(before.values())


@pytest.mark.slow(1)
def test_products_with_offsets_are_merged_with_them(exported, tmp_path):
    """Zero points by half-quadratic quantization cost a layer one product and one sum for each distinct input."""
    model = graph.load(exported / MODEL_FILE)
    assert graph.untie_head(model)
    quantized = in_blocks(model, 4, 32, False, {each.node for each in graph.linears(model)}, hqq=True)
    # Activations rounded to 8 bits would turn a difference in the last digit into one of a step.
    for each in (each for node in quantized.graph.node for each in node.attribute):
        if each.name == "accuracy_level":
            each.i = 1
    graph.save(quantized, tmp_path / MODEL_FILE)
    made = unpadded(graph.copy_of(quantized))
    assert made is not None
    counts = Counter(node.op_type for node in onnx.load_from_string(made.content).graph.node)
    products = 4 * 5 + 1
    assert (counts["MatMulNBits"], counts["MatMul"]) == (products, products)
    assert counts["ReduceSum"] == 4 * 4 + 1
    assert counts["SkipSimplifiedLayerNormalization"] == 8
    mask, pads = np.ones_like(IDS), np.ones_like(IDS)
    pads[0, 0] = 0
    decoder = OnnxDecoder(tmp_path / MODEL_FILE, floats=True)
    without, _ = decoder.run(IDS, mask)
    with_mask, _ = decoder.run(IDS, pads)
    assert without[1] == pytest.approx(with_mask[1], abs=1e-4)


@pytest.mark.slow(2)
def test_there_is_none_of_a_graph_with_other_attention(exported_gpt2):
    assert unpadded(graph.load(exported_gpt2 / MODEL_FILE)) is None
    assert not OnnxDecoder(exported_gpt2 / MODEL_FILE, floats=True).has_unpadded


@pytest.mark.parametrize(("bits", "hqq"), [(4, False), (8, False), (4, True)])
@pytest.mark.parametrize("biases", [(), "q", "qkv"])
def test_products_side_by_side_are_what_they_were_one_by_one(bits, hqq, biases):
    widths = {"q": 24, "k": 8, "v": 8}
    weights = {f"w{name}": RANDOM.normal(size=(32, width)).astype(np.float32) for name, width in widths.items()}
    weights |= {f"b{name}": RANDOM.normal(size=widths[name]).astype(np.float32) for name in biases}
    nodes, ends = [], []
    for name in widths:
        ends.append(f"s{name}" if name in biases else f"p{name}")
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"p{name}"], name=f"/layers.0/{name}_proj/MatMul"))
        if name in biases:
            nodes.append(
                helper.make_node("Add", [f"b{name}", f"p{name}"], [f"s{name}"], name=f"/layers.0/{name}_proj/Add")
            )
    model = small(nodes, weights, ends, rows=(1, 2))
    model = in_blocks(model, bits, 16, bits == 8, {node.name for node in nodes}, hqq)
    feeds = {"x": RANDOM.normal(size=(1, 2, 32)).astype(np.float32)}
    expected = run(model, feeds)
    merged = merge_products(model, [ends])
    if biases == "q":  # they are not alike
        assert merged == {}
        return
    model.graph.output.append(helper.make_tensor_value_info(merged[ends[0]], TensorProto.FLOAT, [1, 2, 40]))
    *_, found = run(model, feeds)
    assert found == pytest.approx(np.concatenate(expected, axis=2), abs=1e-5)
    graph.remove_unused(model)
    assert Counter(node.op_type for node in model.graph.node)["MatMulNBits"] == 4


@pytest.mark.parametrize(("power", "axis", "one", "fuses"), [(2, -1, 1, 1), (3, -1, 1, 0), (2, 0, 1, 0), (2, -1, 2, 0)])
def test_a_sum_and_the_norm_behind_it_become_one_operator_and_nothing_else_does(power, axis, one, fuses):
    weights = {
        "two": np.array(power, dtype=np.float32),
        "axes": np.array([axis], dtype=np.int64),
        "eps": np.array(1e-5, dtype=np.float32),
        "one": np.array(one, dtype=np.float32),
        "gamma": RANDOM.normal(size=32).astype(np.float32),
    }
    nodes = [
        helper.make_node("Abs", ["x"], ["y"], name="abs"),
        helper.make_node("Add", ["x", "y"], ["sum"], name="sum"),
        helper.make_node("Cast", ["sum"], ["s"], name="cast", to=TensorProto.FLOAT),
        helper.make_node("Pow", ["s", "two"], ["p"], name="pow"),
        helper.make_node("ReduceMean", ["p", "axes"], ["m"], name="mean"),
        helper.make_node("Add", ["m", "eps"], ["a"], name="add"),
        helper.make_node("Sqrt", ["a"], ["r"], name="root"),
        helper.make_node("Div", ["one", "r"], ["i"], name="inverse"),
        helper.make_node("Mul", ["s", "i"], ["n"], name="scale"),
        helper.make_node("Mul", ["gamma", "n"], ["normed"], name="weight"),
        helper.make_node("Add", ["normed", "s"], ["z"], name="residual"),
    ]
    model = small(nodes, weights, ["z"], rows=(1, 2))
    feeds = {"x": RANDOM.normal(size=(1, 2, 32)).astype(np.float32)}
    (expected,) = run(model, feeds)
    assert fuse_norms(model) == fuses
    graph.remove_unused(model)
    assert ("SkipSimplifiedLayerNormalization" in {node.op_type for node in model.graph.node}) == bool(fuses)
    (found,) = run(model, feeds)
    assert found == pytest.approx(expected, abs=1e-5)
