"""Smoothing balances channels between activations and weights without changing the logits."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder
from llmtrack.quantize.sensitivity import inputs_of, mean_loss
from llmtrack.quantize.smooth import channel_ranges, smooth

RANDOM = np.random.default_rng(0)
ROWS = tuple(tuple(RANDOM.integers(3, 500, 32).tolist()) for _ in range(2))


@pytest.mark.slow(1)
def test_a_smoothed_graph_is_equivalent_and_its_channels_are_balanced(exported, tmp_path):
    model = graph.load(exported / MODEL_FILE)
    graph.untie_head(model)
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    # The inputs of queries, keys and values, of gate and up, and of down; not the output of attention.
    assert smooth(model, channel_ranges(inputs_of(model, layers, ROWS))) == 4 * 3
    graph.save(model, tmp_path / MODEL_FILE)
    assert mean_loss(OnnxDecoder(tmp_path / MODEL_FILE), ROWS) == pytest.approx(
        mean_loss(OnnxDecoder(exported / MODEL_FILE), ROWS), abs=1e-5
    )
    weights = graph.weights_of(model)
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    ranges = channel_ranges(inputs_of(model, layers, ROWS))
    for source in {layer.source for layer in layers if layer.module.endswith(("q_proj", "up_proj", "down_proj"))}:
        largest = ranges[source]
        consumers = [numpy_helper.to_array(weights[layer.weight]) for layer in layers if layer.source == source]
        weight = np.max([np.abs(weight).max(axis=1) for weight in consumers], axis=0)
        assert largest == pytest.approx(weight, rel=1e-3)


@pytest.mark.slow(1)
def test_layers_after_other_norms_are_not_smoothed(exported_gpt2):
    model = graph.load(exported_gpt2 / MODEL_FILE)
    graph.untie_head(model)
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    before = {tensor.name for tensor in model.graph.initializer}
    assert smooth(model, channel_ranges(inputs_of(model, layers, ROWS))) == 0
    assert {tensor.name for tensor in model.graph.initializer} <= before
