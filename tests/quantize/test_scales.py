"""8-bit weights with a scale per column, as ONNX Runtime computes it, and 8-bit products with a scale per token."""

from __future__ import annotations

import platform
from collections import Counter

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
import onnx
from onnx import TensorProto, helper
from onnxruntime.quantization.quant_utils import quantize_data

from llmtrack.host.machine import cpu_flags
from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder
from llmtrack.quantize.int8 import ARM
from llmtrack.quantize.recipe import Job, find_recipe
from llmtrack.quantize.scales import by_column, scale_by_token
from tests.onnx.small import run, small

# Signed weights need a CPU whose products of bytes do not overflow; on others (AVX2, AVX-512 without VNNI) the recipe
# uses unsigned ones.
SIGNS = [False, True] if "avx512_vnni" in cpu_flags() or platform.machine().lower() in ARM else [False]

RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.normal(size=(5, 32)).astype(np.float32)
TOKENS[1] *= 1000
TOKENS[2] = 0
WEIGHTS = {f"w{name}": RANDOM.normal(size=(32, 8)).astype(np.float32) for name in "ab"}


def products(signed=True, opset=18):
    """Build two products that read the same tokens."""
    nodes = [helper.make_node("MatMul", ["x", f"w{name}"], [name], name=f"/{name}/MatMul") for name in "ab"]
    model = small(nodes, WEIGHTS, ["a", "b"], opset)
    scale_by_token(model, {node.name for node in nodes}, signed)
    onnx.checker.check_model(model)
    return model


@pytest.mark.parametrize("signed", SIGNS)
@pytest.mark.parametrize("opset", [13, 18])
def test_products_are_those_of_rounded_tokens_and_rounded_columns(signed, opset):
    results = run(products(signed, opset), {"x": TOKENS})
    largest = np.maximum(np.abs(TOKENS).max(axis=1, keepdims=True), 1e-20)
    tokens = np.round(TOKENS / largest * 127).astype(np.float64)
    for name, result in zip("ab", results, strict=True):
        data_type = TensorProto.INT8 if signed else TensorProto.UINT8
        values, scales, zeros = by_column(WEIGHTS[f"w{name}"], data_type)
        weight = (values.astype(np.float64) - zeros) * scales
        assert result == pytest.approx(tokens @ weight * largest / 127, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("signed", SIGNS)
def test_a_huge_token_does_not_affect_others_and_zeros_stay_zero(signed):
    model = products(signed)
    together, _ = run(model, {"x": TOKENS})
    for index, token in enumerate(TOKENS):
        (alone,), _ = run(model, {"x": token[None]})
        assert alone.tolist() == together[index].tolist()
    assert not together[2].any()
    exact = TOKENS @ WEIGHTS["wa"]
    error = np.abs(together - exact).max(axis=1)
    assert (error <= 0.03 * np.abs(exact).max(axis=1)).all()


def test_tokens_are_rounded_once_for_all_consumers():
    counts = Counter(node.op_type for node in products().graph.node)
    assert counts == {
        **dict.fromkeys(("Abs", "ReduceMax", "Max", "Div", "QuantizeLinear"), 1),
        **dict.fromkeys(("MatMulIntegerToFloat", "Mul"), 2),
    }


@pytest.fixture(scope="module")
def per_token(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("per-token")
    recipe = find_recipe("onnx", "int8-per-token")
    rows = tuple(tuple(RANDOM.integers(3, 500, 32).tolist()) for _ in range(2))
    recipe.apply(Job(exported, folder, recipe.resolve_options(()), rows))
    return folder / MODEL_FILE


@pytest.mark.slow(1)
def test_each_layer_is_an_8_bit_product_and_each_input_is_rounded_once(per_token):
    counts = Counter(node.op_type for node in graph.load(per_token).graph.node)
    # Four layers of seven products with four distinct inputs; the head is in blocks.
    assert counts["MatMulIntegerToFloat"] == 4 * 7
    assert counts["QuantizeLinear"] == 4 * 4
    assert (counts["MatMulNBits"], counts["GatherBlockQuantized"]) == (1, 1)
    assert OnnxDecoder(per_token).has_unpadded


@pytest.mark.slow(1)
def test_a_row_does_not_depend_on_its_batch_and_pads(per_token):
    assert not find_recipe("onnx", "int8-per-token").depends_on_batch
    ids = RANDOM.integers(3, 500, (3, 12))
    mask = np.ones_like(ids)
    mask[1, :5] = 0
    decoder = OnnxDecoder(per_token)
    together, _ = decoder.run(ids, mask, keep=1)
    for row, first in enumerate((0, 5, 0)):
        # In a batch of the same shape with other neighbours and pads, every bit is equal, on any CPU.
        others = RANDOM.integers(3, 500, ids.shape)
        others[row, first:] = ids[row, first:]
        assert np.array_equal(decoder.run(others, mask, keep=1)[0][row], together[row])
        # With another shape, the order of summation differs, and a last bit can become a step of the rounding.
        alone, _ = decoder.run(ids[row : row + 1, first:], np.ones((1, 12 - first), dtype=np.int64), keep=1)
        assert np.corrcoef(together[row, -1], alone[0, -1])[0, 1] > 0.98


COLUMNS = {
    "ordinary": RANDOM.normal(size=(64, 40)),
    "columns of very different size": RANDOM.normal(size=(16, 30)) * np.logspace(-30, 20, 30),
    "halves, which round to even": RANDOM.integers(-254, 255, size=(64, 20)) / 2,
    "columns of zeros and of subnormal numbers": np.array([[0.0, 1e-39, -1e-45, 2.0], [0.0, 0.0, 0.0, -1.0]]),
    "columns of one sign": np.abs(RANDOM.normal(size=(8, 5))) * np.array([1, -1, 1, -1, 1]),
}


@pytest.mark.parametrize("data_type", [TensorProto.INT8, TensorProto.UINT8], ids=["int8", "uint8"])
@pytest.mark.parametrize("weight", COLUMNS.values(), ids=COLUMNS)
def test_columns_are_rounded_as_by_onnx_runtime(weight, data_type):
    weight = weight.astype(np.float32)
    results = by_column(weight, data_type)
    expected = [quantize_data(column, data_type, symmetric=True) for column in weight.T]
    zeros, scales, columns = map(np.stack, zip(*expected, strict=True))
    for ours, theirs in zip(results, (columns.T, scales, zeros), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
