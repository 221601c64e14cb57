"""The explained loss, against values computed by hand."""

import math

import pytest
import torch

from llmtrack.train.explain import loss_by_hand, softmax
from llmtrack.train.loop import sum_cross_entropy


def test_softmax_and_loss_by_hand():
    """softmax([2, 1, 0.1])[1] = e / (e^2 + e + e^0.1) = 0.2424, and -ln of it 1.4170."""
    logits = [2.0, 1.0, 0.1]
    p = math.exp(1) / (math.exp(2) + math.exp(1) + math.exp(0.1))
    assert softmax(logits) == pytest.approx([0.6590011389, 0.2424329707, 0.0985658904], abs=1e-10)
    assert loss_by_hand([logits], [1]) == pytest.approx(-math.log(p), abs=1e-12)
    assert loss_by_hand([logits], [1]) == pytest.approx(1.4170300163, abs=1e-10)
    # With a softmax before the loss it would be 1.2187.
    by_torch = sum_cross_entropy(torch.tensor([[logits]]), torch.tensor([[1]]))
    assert float(by_torch) == pytest.approx(1.4170300163, abs=1e-6)


def test_softmax_does_not_overflow():
    assert softmax([1000.0, 1000.0]) == [0.5, 0.5]
