"""The effect of rounding is measured on models that are sensitive to it, against exact values."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from llmtrack.engines.rounding import differ, noise_of
from tests.engines.models import bigram_engine, small

LOGITS = torch.tensor([-1.0, 0.0, 1.0])  # a standard deviation of 1


@pytest.mark.parametrize(
    ("difference", "rounding", "expected"),
    [
        (0.0009, 0.0, False),
        (0.0011, 0.0, True),
        (0.1, 0.03, True),
        (0.1, 0.04, False),  # rounding has more than a third of the effect
        (0.1, 0.4, False),
    ],
)
def test_logits_differ_beyond_a_thousandth_and_three_times_the_effect_of_rounding(difference, rounding, expected):
    changed = torch.tensor([0.0, difference, 0.0])
    drawn = []

    def noise(seed):
        drawn.append(seed)
        return nullcontext()

    def recompute():
        # The largest of several draws counts.
        return LOGITS + torch.tensor([0.0, 0.0, rounding / (1 if len(drawn) == 2 else 10)])

    assert differ(LOGITS, LOGITS + changed, recompute, noise) is expected
    assert len(drawn) == (4 if difference > 0.001 else 0), "measured only if it matters"
    assert differ(LOGITS, LOGITS + changed, recompute, None) is (difference > 0.001)


def test_noise_changes_last_bits_within_its_context_only():
    engine = small("llama")
    noise = noise_of(engine.model)
    embedding, ids = engine.model.get_input_embeddings(), torch.arange(1, 60)
    with torch.inference_mode():
        before = embedding(ids)
        with noise(0):
            first = embedding(ids)
        with noise(1):
            other = embedding(ids)
        assert torch.equal(embedding(ids), before)
    assert not torch.equal(first, other)
    assert 1e-8 < ((first - before).abs() / before.abs()).max() < 1e-6
    assert noise_of(bigram_engine(torch.zeros(4, 4)).model) is None
