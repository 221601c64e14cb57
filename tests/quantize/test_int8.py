"""The quantizer of 8-bit recipes gets a graph without the values of its weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE
from llmtrack.quantize.int8 import quantize
from llmtrack.quantize.recipe import Job

ROWS = tuple(tuple(row) for row in np.random.default_rng(0).integers(0, 500, (4, 16)).tolist())


@pytest.mark.slow(2)
@pytest.mark.parametrize("model", ["exported", "exported_gpt2"])
@pytest.mark.parametrize("calibration", [None, "minmax"], ids=["dynamic", "static"])
def test_the_result_is_that_of_a_quantizer_with_all_values(model, calibration, request, tmp_path, monkeypatch):
    source = request.getfixturevalue(model)
    base = graph.load(source / MODEL_FILE)
    graph.untie_head(base)
    before = base.SerializeToString(deterministic=True)
    job = Job(source, tmp_path, {}, ROWS)
    result = quantize(job, base, calibration)
    assert base.SerializeToString(deterministic=True) == before
    sizes = []
    restore = graph.restore_weights
    monkeypatch.setattr(graph, "shrink_weights", lambda model: set())
    monkeypatch.setattr(
        graph, "restore_weights", lambda model, *rest: sizes.append(graph.weight_bytes(model)) or restore(model, *rest)
    )
    expected = quantize(job, base, calibration)
    assert sizes[0] > 10_000  # the values were there
    assert list(result.graph.node) == list(expected.graph.node)
    assert list(result.graph.value_info) == list(expected.graph.value_info)
    weights, others = (
        {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for model in (result, expected)
    )
    assert weights.keys() == others.keys()
    for name, values in weights.items():
        assert values.dtype == others[name].dtype
        np.testing.assert_array_equal(values, others[name], err_msg=name)
