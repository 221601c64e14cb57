"""Log-likelihoods over a large vocabulary are exact, where float32 sums over it are off by 1e-5 nats and more."""

from __future__ import annotations

import pytest
import torch

from llmtrack.tensors import likelihood
from llmtrack.tensors.likelihood import (
    CHUNK_BYTES,
    CHUNK_TOKENS,
    HEAP_BYTES,
    chunk_tokens,
    sum_nll,
    token_nll,
    token_nll_in_cache,
)


@pytest.mark.parametrize(
    ("vocab_size", "tokens"),
    [
        (49_152, 165),  # 31 MiB: a block that the C library reuses
        (128_000, CHUNK_TOKENS),  # 62.5 MiB: fewer tokens would make the product slower
        (262_144, 64),  # 64 MiB: the maximum
        (100_000_000, 1),
    ],
)
def test_a_chunk_fits_into_reused_memory_unless_the_product_needs_more_tokens(vocab_size, tokens):
    assert chunk_tokens(vocab_size, torch.device("cpu")) == tokens
    size = 4 * vocab_size * tokens
    assert size <= (HEAP_BYTES if tokens > CHUNK_TOKENS else CHUNK_BYTES) or tokens == 1


def test_a_large_vocabulary_loses_no_accuracy():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, 64, 50_000, generator=generator)
    targets = torch.randint(50_000, (1, 64), generator=generator)
    everything = torch.ones(1, 64, dtype=torch.bool)
    (loss,) = sum_nll(logits, targets, everything, lambda rows: rows, 50_000).tolist()
    exact = -torch.log_softmax(logits.double(), -1).gather(2, targets[..., None]).sum().item()
    assert abs(loss - exact) / 64 < 1e-9


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
def test_float32_exponentials_lose_a_millionth_of_a_nat_at_most(kind, vocabulary):
    torch.manual_seed(0)
    logits, targets = LOGITS[kind](7, vocabulary), torch.zeros(7, dtype=torch.int64)
    difference = token_nll_in_cache(logits, targets) - token_nll(logits, targets)
    assert difference.abs().max() < 1e-6
    assert difference.mean().abs() < 1e-6 / 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_logits_of_other_precisions(dtype):
    torch.manual_seed(0)
    logits, targets = (3 * torch.randn(5, 1000)).to(dtype), torch.arange(5)
    loss, exact = token_nll_in_cache(logits, targets), token_nll(logits, targets)
    assert loss.dtype == torch.float64
    assert (loss - exact).abs().max() < (1e-12 if dtype == torch.float64 else 1e-6)


def test_the_chunk_size_does_not_change_the_result(monkeypatch):
    torch.manual_seed(0)
    logits, targets = torch.randn(11, 100), torch.arange(11)
    at_once = token_nll_in_cache(logits, targets)
    monkeypatch.setattr(likelihood, "CACHE_BYTES", 4 * 100 * 4)  # 4, 4 and 3 tokens
    assert torch.equal(token_nll_in_cache(logits, targets), at_once)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_non_finite_logits_stay_non_finite(value):
    logits = torch.zeros(2, 10)
    logits[1, 3] = value
    assert token_nll_in_cache(logits, torch.tensor([0, 0])).isfinite().tolist() == [True, False]
