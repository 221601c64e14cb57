"""Learning rate, FLOPs, and the loss, against values computed by hand."""

import math

import pytest
import torch

from llmtrack.train.explain import loss_by_hand, softmax
from llmtrack.train.flops import flops_per_token, peak_flops
from llmtrack.train.loop import learning_rate, sum_cross_entropy


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


def test_ignored_targets_do_not_count():
    logits = torch.tensor([[[2.0, 1.0, 0.1], [9.0, 0.0, 0.0]]])
    assert float(sum_cross_entropy(logits, torch.tensor([[1, -100]]))) == pytest.approx(1.41703, abs=1e-5)


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (1, 0.1),
        (5, 0.5),
        (10, 1.0),
        (60, 0.1 + 0.9 * (1 + math.cos(math.pi * 0.5)) / 2),
        (110, 0.1),
    ],
)
def test_the_rate_warms_up_and_decays_by_a_cosine(step, rate):
    assert learning_rate(step, steps=110, peak=1.0, warmup=10) == pytest.approx(rate)


def test_without_warm_up_the_first_step_has_the_peak_rate():
    assert learning_rate(1, steps=11, peak=3.0, warmup=0) == 3.0
    assert learning_rate(6, steps=11, peak=3.0, warmup=0) == pytest.approx(3 * 0.55)
    assert learning_rate(1, steps=1, peak=3.0, warmup=0) == 3.0


def test_training_that_ends_during_warm_up_never_reaches_the_peak():
    assert [learning_rate(s, steps=2, peak=1.0, warmup=4) for s in (1, 2)] == [0.25, 0.5]


def test_flops_per_token():
    # Two matrices of 10 x 10 in each of 3 layers, and attention over 8 tokens at width 10.
    assert flops_per_token(600, layers=3, width=10, length=8) == 6 * 600 + 12 * 3 * 10 * 8


def test_peaks_match_whole_words_of_the_device_name():
    assert peak_flops("NVIDIA H100 80GB HBM3", "bfloat16") == 989e12
    assert peak_flops("NVIDIA H100 PCIe", "bfloat16") == 756e12
    assert peak_flops("NVIDIA L40S", "bfloat16") is None
    assert peak_flops("NVIDIA L4", "float32") == 30.3e12
