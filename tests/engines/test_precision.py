"""Log-likelihoods over a large vocabulary are exact, where float32 sums over it are off by 1e-5 nats and more."""

from __future__ import annotations

import pytest
import torch

from llmtrack.tensors import likelihood
from llmtrack.tensors.likelihood import sum_nll, token_nll, token_nll_in_cache


def test_a_large_vocabulary_costs_no_accuracy():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 64, 50_000, generator=generator)
    targets = torch.randint(50_000, (1, 64), generator=generator)
    everything = torch.ones(1, 64, dtype=torch.bool)
    (found,) = sum_nll(logits, targets, everything, lambda rows: rows, 50_000).tolist()
    exact = -torch.log_softmax(logits.double(), -1).gather(2, targets[..., None]).sum().item()
    assert abs(found - exact) / 64 < 1e-9


def peaked(tokens: int, vocabulary: int) -> torch.Tensor:
    logits = torch.full((tokens, vocabulary), 0.3)
    logits[:, 0] = 12.0
    return logits


LOGITS = {
    "as a model's": lambda tokens, vocabulary: 3 * torch.randn(tokens, vocabulary),
    "far apart": lambda tokens, vocabulary: 10 * torch.randn(tokens, vocabulary) + 40,
    "equal": torch.zeros,
    "falling": lambda tokens, vocabulary: torch.arange(vocabulary).float().mul(-1e-4).repeat(tokens, 1),
    "one above all": peaked,
    "half ruled out": lambda tokens, vocabulary: torch.randn(tokens, vocabulary).index_fill(
        1, torch.arange(1, vocabulary, 2), -torch.inf
    ),
}


@pytest.mark.parametrize("vocabulary", [3, 50_257, 128_000])
@pytest.mark.parametrize("kind", LOGITS)
def test_exponentials_in_float32_cost_a_millionth_of_a_nat_at_most(kind, vocabulary):
    torch.manual_seed(0)
    logits, targets = LOGITS[kind](7, vocabulary), torch.zeros(7, dtype=torch.int64)
    difference = token_nll_in_cache(logits, targets) - token_nll(logits, targets)
    assert difference.abs().max() < 1e-6
    assert difference.mean().abs() < 1e-6 / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_another_precision_are_summed_as_they_are(dtype):
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(5, 1000)).to(dtype), torch.arange(5)
    found, exact = token_nll_in_cache(logits, targets), token_nll(logits, targets)
    assert found.dtype == torch.float64
    assert (found - exact).abs().max() < (1e-12 if dtype == torch.float64 else 1e-6)


def test_what_is_taken_at_once_changes_nothing(monkeypatch):
    torch.manual_seed(0)
    logits, targets = torch.randn(11, 100), torch.arange(11)
    whole = token_nll_in_cache(logits, targets)
    monkeypatch.setattr(likelihood, "CACHE_BYTES", 4 * 100 * 4)  # 4, 4 and 3 tokens
    assert torch.equal(token_nll_in_cache(logits, targets), whole)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so(value):
    logits = torch.zeros(2, 10)
    logits[1, 3] = value
    assert token_nll_in_cache(logits, torch.tensor([0, 0])).isfinite().tolist() == [True, False]
