"""A scale for each column, as ONNX Runtime computes it one column after the other."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import quantize_data

from llmtrack.quantize.columns import by_column

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "ordinary": RANDOM.normal(size=(64, 40)),
    "columns of very different size": RANDOM.normal(size=(16, 30)) * np.logspace(-30, 20, 30),
    "halves, which round to even": RANDOM.integers(-254, 255, size=(64, 20)) / 2,
    "columns of zeros and of next to nothing": np.array([[0.0, 1e-39, -1e-45, 2.0], [0.0, 0.0, 0.0, -1.0]]),
    "columns of one sign": np.abs(RANDOM.normal(size=(8, 5))) * np.array([1, -1, 1, -1, 1]),
}


@pytest.mark.parametrize("kind", [TensorProto.INT8, TensorProto.UINT8], ids=["int8", "uint8"])
@pytest.mark.parametrize("weight", WEIGHTS.values(), ids=WEIGHTS)
def test_columns_are_rounded_as_onnx_runtime_rounds_each(weight, kind):
    weight = weight.astype(np.float32)
    found = by_column(weight, kind)
    expected = [quantize_data(column, kind, symmetric=True) for column in weight.T]
    zeros, scales, columns = (np.stack(each) for each in zip(*expected, strict=True))
    for ours, theirs in zip(found, (columns.T, scales, zeros), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)
