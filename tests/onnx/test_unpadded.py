"""Rows without pads run in a graph of fewer operators with the same results."""

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
from llmtrack.onnx.unpadded import Unpadded, fuse_norms, unpadded
from llmtrack.quantize.weight_only import in_blocks
from tests.onnx.small import run, small

IDS = np.random.default_rng(0).integers(3, 500, (2, 12))
RANDOM = np.random.default_rng(1)


def logits(decoder: OnnxDecoder, mask: np.ndarray, capacity: int = 0) -> np.ndarray:
    """Compute logits of the first tokens at once, and of the last four one by one from the cache."""
    first, cache = decoder.run(IDS[:, :8], mask[:, :8], capacity=capacity)
    parts = [first]
    for index in range(8, IDS.shape[1]):
        last, cache = decoder.run(IDS[:, index : index + 1], mask[:, : index + 1], cache, keep=1)
        parts.append(last)
    return np.concatenate(parts, axis=1)


@pytest.fixture(scope="module")
def plain(exported):
    """The graph for any mask."""
    return OnnxDecoder(exported / MODEL_FILE, graph_optimization="basic")


@pytest.fixture(scope="module")
def fused(exported):
    return OnnxDecoder(exported / MODEL_FILE, floats=True)


@pytest.mark.parametrize("capacity", [0, 8, 12, 40])
def test_logits_are_equal_for_any_capacity_of_the_cache(plain, fused, capacity):
    assert fused.has_unpadded
    mask = np.ones_like(IDS)
    assert np.abs(logits(fused, mask, capacity) - logits(plain, mask)).max() <= 1e-4


@pytest.mark.slow(1)
def test_batches_with_and_without_pads_can_alternate(plain, fused):
    pads = np.ones_like(IDS)
    pads[0, :3] = 0
    real = pads.astype(bool)
    for mask in (pads, np.ones_like(IDS), pads):
        expected, actual = (logits(decoder, mask)[real] for decoder in (plain, fused))
        assert actual == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow(1)
def test_a_cache_survives_a_call_of_the_other_graph(plain, fused):
    mask, pads = np.ones_like(IDS), np.ones_like(IDS)
    pads[0, 0] = 0
    _, cache = fused.run(IDS[:, :8], mask[:, :8], keep=1, capacity=12)
    fused.run(IDS, pads, keep=1)
    actual, _ = fused.run(IDS[:, 8:9], mask[:, :9], cache, keep=1)
    expected, _ = plain.run(IDS[:, :9], mask[:, :9], keep=1)
    assert actual == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow(1)
def test_flash_attention_is_used_for_long_prompts_of_this_session_only(plain, exported, monkeypatch):
    opened = []
    attention = session._attention
    monkeypatch.setattr(session, "_attention", lambda flash: opened.append(flash) or attention(flash))
    monkeypatch.setattr(session, "_MOST_SCORES", 2 * 8 * 8)
    decoder = OnnxDecoder(exported / MODEL_FILE, floats=True)
    mask = np.ones_like(IDS)
    expected = logits(plain, mask)
    assert np.abs(logits(decoder, mask) - expected).max() <= 1e-4
    assert opened == [False]
    _, cache = decoder.run(IDS[:, :8], mask[:, :8], capacity=12)
    long, _ = decoder.run(IDS, mask)
    assert opened == [False, True]
    assert long[:, -1] == pytest.approx(expected[:, -1], abs=1e-4)
    # It stays so, and an earlier cache remains valid.
    actual, _ = decoder.run(IDS[:, 8:9], mask[:, :9], cache, keep=1)
    assert actual[:, 0] == pytest.approx(expected[:, 8], abs=1e-4)
    assert opened == [False, True]
    assert "ORT_GQA_DISABLE_FLASH_ATTENTION" not in os.environ


def test_the_users_setting_of_flash_attention_is_kept(monkeypatch):
    monkeypatch.setenv("ORT_GQA_DISABLE_FLASH_ATTENTION", "0")
    for flash in (True, False):
        with session._attention(flash):
            assert os.environ["ORT_GQA_DISABLE_FLASH_ATTENTION"] == "0"


def operators(derived: Unpadded | None) -> Counter[str]:
    assert derived is not None
    return Counter(node.op_type for node in onnx.load_from_string(derived.content).graph.node)


def test_its_layers_have_half_the_operators(exported):
    model = graph.load(exported / MODEL_FILE)
    assert graph.untie_head(model)
    quantized = in_blocks(model, 8, 32, True, {layer.node for layer in graph.linears(model)})
    before = Counter(node.op_type for node in quantized.graph.node)
    counts = operators(unpadded(quantized))
    # Four layers: queries, keys and values are one product; attention rotates; seven of eight norms follow a sum, and the last.
    assert (before["MatMulNBits"], counts["MatMulNBits"]) == (4 * 7 + 1, 4 * 5 + 1)
    assert (before["RotaryEmbedding"], counts["RotaryEmbedding"]) == (8, 0)
    assert counts["SkipSimplifiedLayerNormalization"] == 8
    assert counts["GroupQueryAttention"] == 4
    assert sum(counts.values()) < 0.6 * sum(before.values())


def test_a_graph_in_memory_is_run_like_its_file_and_not_changed(exported, tmp_path):
    model = graph.load(exported / MODEL_FILE)
    graph.untie_head(model)
    quantized = in_blocks(model, 8, 32, True, {layer.node for layer in graph.linears(model)})
    before = graph.copy_of(quantized)
    graph.save(quantized, tmp_path / MODEL_FILE)
    decoders = [OnnxDecoder(source) for source in (quantized, tmp_path / MODEL_FILE)]
    assert all(decoder.has_unpadded for decoder in decoders)
    pads = np.ones_like(IDS)
    pads[0, 0] = 0
    for mask in (np.ones_like(IDS), pads):
        ours, theirs = (decoder.run(IDS, mask)[0] for decoder in decoders)
        assert np.array_equal(ours, theirs)
    assert quantized == before


@pytest.mark.slow(1)
def test_products_are_merged_with_their_offsets(exported, tmp_path):
    """Zero points by half-quadratic quantization cost a layer one product and one sum for each distinct input."""
    model = graph.load(exported / MODEL_FILE)
    assert graph.untie_head(model)
    quantized = in_blocks(model, 4, 32, False, {layer.node for layer in graph.linears(model)}, hqq=True)
    # Activations rounded to 8 bits would turn a difference in the last digit into one of a step.
    for attribute in (attribute for node in quantized.graph.node for attribute in node.attribute):
        if attribute.name == "accuracy_level":
            attribute.i = 1
    graph.save(quantized, tmp_path / MODEL_FILE)
    counts = operators(unpadded(graph.copy_of(quantized)))
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
def test_a_graph_with_other_attention_has_none(exported_gpt2):
    assert unpadded(graph.load(exported_gpt2 / MODEL_FILE)) is None
    assert not OnnxDecoder(exported_gpt2 / MODEL_FILE, floats=True).has_unpadded


@pytest.mark.parametrize(("bits", "hqq"), [(4, False), (8, False), (4, True)])
@pytest.mark.parametrize("biases", [(), "q", "qkv"])
def test_merged_products_equal_the_separate_ones(bits, hqq, biases):
    widths = {"q": 24, "k": 8, "v": 8}
    weights = {f"w{name}": RANDOM.normal(size=(32, width)).astype(np.float32) for name, width in widths.items()}
    weights |= {f"b{name}": RANDOM.normal(size=widths[name]).astype(np.float32) for name in biases}
    nodes, results = [], []
    for name in widths:
        results.append(f"s{name}" if name in biases else f"p{name}")
        nodes.append(helper.make_node("MatMul", ["x", f"w{name}"], [f"p{name}"], name=f"/layers.0/{name}_proj/MatMul"))
        if name in biases:
            nodes.append(
                helper.make_node("Add", [f"b{name}", f"p{name}"], [f"s{name}"], name=f"/layers.0/{name}_proj/Add")
            )
    model = small(nodes, weights, results, rows=(1, 2))
    model = in_blocks(model, bits, 16, bits == 8, {node.name for node in nodes}, hqq)
    feeds = {"x": RANDOM.normal(size=(1, 2, 32)).astype(np.float32)}
    expected = run(model, feeds)
    merged = merge_products(model, [results])
    if biases == "q":  # products with and without bias are not merged
        assert merged == {}
        return
    model.graph.output.append(helper.make_tensor_value_info(merged[results[0]], TensorProto.FLOAT, [1, 2, 40]))
    *_, actual = run(model, feeds)
    assert actual == pytest.approx(np.concatenate(expected, axis=2), abs=1e-5)
    graph.remove_unused(model)
    assert Counter(node.op_type for node in model.graph.node)["MatMulNBits"] == 4


@pytest.mark.parametrize(("power", "axis", "one", "fuses"), [(2, -1, 1, 1), (3, -1, 1, 0), (2, 0, 1, 0), (2, -1, 2, 0)])
def test_only_a_sum_followed_by_a_root_mean_square_norm_is_fused(power, axis, one, fuses):
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
    (actual,) = run(model, feeds)
    assert actual == pytest.approx(expected, abs=1e-5)
