"""Batch sizes by free memory, on which the result does not depend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.quality import batching
from llmtrack.quality.batching import in_batches, token_budget
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.options import parameters
from llmtrack.spec.task import PerplexityTask
from tests.engines.models import small

TEXTS = ("The harbour is quiet.", "Boats come in with the tide, and go out with it.", "x", "Two more words")


def batches(rows, score=len, batch_size=None, budget=100):
    scored = in_batches(rows, lambda row: row, score, batch_size, budget)
    return [(len(batch), value) for batch, value in scored]


def test_a_batch_fills_the_budget_with_its_longest_row():
    assert batches([50, 50, 40, 30, 30, 20]) == [(2, 2), (2, 2), (2, 2)]
    assert batches([30, 40, 30]) == [(2, 2), (1, 1)], "the longest may come later"
    assert batches([500, 10, 10]) == [(1, 1), (2, 2)], "a row over the budget is tried alone"


def test_a_fixed_batch_size_ignores_the_budget():
    assert batches([500, 500, 10], batch_size=2) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate")])
def test_the_budget_is_halved_when_out_of_memory(error):
    tried = []

    def score(rows):
        tried.append(len(rows))
        if sum(rows) > 30:
            raise error
        return sum(rows)

    assert batches([10] * 12, score) == [(2, 20)] * 6
    assert tried == [10, 5, 2, 2, 2, 2, 2, 2]
    with pytest.raises(type(error)):
        batches([10] * 12, score, batch_size=4)
    with pytest.raises(type(error)):
        batches([40], score)


def test_other_errors_are_raised():
    def score(rows):
        raise ValueError("another")

    with pytest.raises(ValueError, match="another"):
        batches([10] * 4, score)


def test_the_budget_follows_from_free_memory():
    info = replace(small("llama").info, score_bytes_per_token=1000)
    gpu = replace(info, device="cuda:0")
    assert token_budget(info, 10**12) == batching.MOST_TOKENS
    assert token_budget(gpu, 10**12) == batching.MOST_TOKENS_ON_GPU
    assert token_budget(gpu, 320_000_000) == 320_000_000 // 2 // 16 // 1000
    assert token_budget(gpu, 0) == 1
    assert token_budget(replace(info, score_bytes_per_token=0), 0) == batching.MOST_TOKENS


@pytest.mark.parametrize("score", [score_documents, score_rolling])
def test_the_result_does_not_depend_on_the_batch_size(score, monkeypatch):
    engine = small("llama")
    fixed = score(engine, TEXTS, max_length=16, batch_size=2)
    for most in (1, 40, 10_000):
        monkeypatch.setattr(batching, "MOST_TOKENS", most)
        auto = score(engine, TEXTS, max_length=16, batch_size=None)
        assert auto.loss == pytest.approx(fixed.loss, abs=1e-6)
        assert (auto.tokens_scored, auto.tokens_digest) == (fixed.tokens_scored, fixed.tokens_digest)
    assert len(auto.batch_losses) == 1


def test_the_option_accepts_auto():
    (option,) = (parameter for parameter in parameters(PerplexityTask) if parameter.name == "batch_size")
    assert option.parse("auto") is None
    assert option.parse("8") == 8
    assert PerplexityTask(batch_size=None).batch_size is None
