"""Products with float zero points are split into the fast product and a small one, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import helper, numpy_helper

from llmtrack.onnx.graph import weights_of
from llmtrack.onnx.matmul_nbits import split_zero_points
from tests.onnx.small import run, small

EXACT = 1
"""Accuracy level of products of floats."""


def product(name, zeros, block=16, width=32, outputs=2):
    """Build a product with weights `scale * (q - zero)`: q is 3 in the first output and 12 in the others, scales 0.5."""
    steps = np.full((outputs, width // block, block // 2), 0x33, dtype=np.uint8)
    steps[1:] = 0xCC
    blocks = outputs * (width // block)
    weights = {
        f"{name}.q": steps,
        f"{name}.scales": np.full(blocks, 0.5, dtype=np.float32),
        f"{name}.zeros": zeros,
    }
    settings = {"K": width, "N": outputs, "bits": 4, "block_size": block}
    node = helper.make_node(
        "MatMulNBits",
        ["x", f"{name}.q", f"{name}.scales", f"{name}.zeros"],
        [f"{name}.y"],
        name=name,
        domain="com.microsoft",
        **settings,
    )
    return node, weights


def test_splitting_float_zero_points_preserves_the_result():
    zeros = np.array([2.5, 7.25, 9.5, 0.0], dtype=np.float32)
    node, weights = product("a", zeros)
    model = small([node], weights, ["a.y"], rows=(1, 2))
    inputs = np.zeros((1, 2, 32), dtype=np.float32)
    inputs[0, 0, :16], inputs[0, 0, 16:], inputs[0, 1, 0] = 1.0, 2.0, 3.0
    # First row: 16 ones in the first block, 16 twos in the second; second row: one 3 in the first.
    by_hand = [
        [0.5 * (16 * (3 - 2.5) + 32 * (3 - 7.25)), 0.5 * (16 * (12 - 9.5) + 32 * 12)],
        [0.5 * 3 * (3 - 2.5), 0.5 * 3 * (12 - 9.5)],
    ]
    assert run(model, {"x": inputs})[0][0] == pytest.approx(np.array(by_hand), abs=1e-5)
    assert split_zero_points(model, EXACT) == 1
    assert run(model, {"x": inputs})[0][0] == pytest.approx(np.array(by_hand), abs=1e-5)
    (split,) = (node for node in model.graph.node if node.op_type == "MatMulNBits")
    assert (len(split.input), split.name) == (3, "a")
    offsets = weights_of(model)["a.offsets"]
    assert numpy_helper.to_array(offsets).tolist() == [[2.75, -0.75], [0.375, 4.0]]


def test_an_input_is_summed_once_per_block_size():
    zeros = np.full(4, 7.5, dtype=np.float32)
    products = [product("a", zeros), product("b", zeros), product("c", zeros[:2], block=32)]
    weights = {name: array for _, arrays in products for name, array in arrays.items()}
    model = small([node for node, _ in products], weights, ["a.y", "c.y"], rows=(1, 2))
    assert split_zero_points(model, EXACT) == 3
    assert sum(node.op_type == "ReduceSum" for node in model.graph.node) == 2


def test_integer_zero_points_are_not_split():
    node, weights = product("a", np.full((2, 1), 0x77, dtype=np.uint8))
    model = small([node], weights, ["a.y"], rows=(1, 2))
    assert split_zero_points(model, EXACT) == 0
    assert [node.op_type for node in model.graph.node] == ["MatMulNBits"]
