"""Smoothing shares the spread of channels between activations and weights, and changes nothing that the graph says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
from onnx import numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE
from llmtrack.quantize.sensitivity import inputs_of, mean_loss
from llmtrack.quantize.smooth import largest_of, smooth

RANDOM = np.random.default_rng(0)
ROWS = tuple(tuple(RANDOM.integers(3, 500, 32).tolist()) for _ in range(2))


@pytest.mark.slow(1)
def test_a_smoothed_graph_says_the_same_and_shares_the_spread_of_channels(exported, tmp_path):
    model = graph.load(exported / MODEL_FILE)
    graph.untie_head(model)
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    # Of four layers: what queries, keys and values read, what gate and up read, and what down reads; not what comes of attention.
    assert smooth(model, largest_of(inputs_of(model, layers, ROWS))) == 4 * 3
    graph.save(model, tmp_path / MODEL_FILE)
    assert mean_loss(tmp_path / MODEL_FILE, ROWS) == pytest.approx(mean_loss(exported / MODEL_FILE, ROWS), abs=1e-5)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    seen = largest_of(inputs_of(model, layers, ROWS))
    for source in {layer.source for layer in layers if layer.module.endswith(("q_proj", "up_proj", "down_proj"))}:
        largest = seen[source]
        readers = [layer for layer in layers if layer.source == source]
        weight = np.max([np.abs(numpy_helper.to_array(weights[each.weight])).max(axis=1) for each in readers], axis=0)
        assert largest == pytest.approx(weight, rel=1e-3)


@pytest.mark.slow(1)
def test_layers_behind_other_norms_stay_as_they_are(exported_gpt2):
    model = graph.load(exported_gpt2 / MODEL_FILE)
    graph.untie_head(model)
    layers = [layer for layer in graph.linears(model) if layer.result != "logits"]
    before = {tensor.name for tensor in model.graph.initializer}
    assert smooth(model, largest_of(inputs_of(model, layers, ROWS))) == 0
    assert {tensor.name for tensor in model.graph.initializer} <= before
