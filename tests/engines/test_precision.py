"""Log-likelihoods over a large vocabulary are exact: float32 sums over it are low by a few 1e-5 nats."""

from __future__ import annotations

import torch

from llmtrack.tensors.likelihood import sum_nll


def test_a_large_vocabulary_costs_no_accuracy():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 64, 50_000, generator=generator)
    targets = torch.randint(50_000, (1, 64), generator=generator)
    everything = torch.ones(1, 64, dtype=torch.bool)
    (found,) = sum_nll(logits, targets, everything, lambda rows: rows, 50_000).tolist()
    exact = -torch.log_softmax(logits.double(), -1).gather(2, targets[..., None]).sum().item()
    assert abs(found - exact) / 64 < 1e-9
