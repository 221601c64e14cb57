"""Standard errors by bootstrap: known answers, and blocks that keep neighbours together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.quality import metrics
from llmtrack.quality.metrics import gather_blocks, stderr_of_ratio


def test_blocks_of_equal_size_give_the_standard_error_of_a_mean() -> None:
    losses = np.random.default_rng(1).normal(3.0, 0.5, size=400)
    expected = losses.std(ddof=1) / np.sqrt(len(losses))
    assert stderr_of_ratio(losses * 10, [10] * 400) == pytest.approx(expected, rel=0.1)


def test_equal_losses_have_no_error() -> None:
    assert stderr_of_ratio([2.0, 6.0, 20.0], [1, 3, 10]) == pytest.approx(0.0, abs=1e-12)


def test_more_blocks_have_a_smaller_error() -> None:
    few, many = (stderr_of_ratio([1.0, 3.0] * n, [1, 1] * n) for n in (5, 50))
    assert few is not None
    assert many is not None
    assert many < few / 2


@pytest.mark.parametrize("blocks", [3, 25, 500])
def test_the_error_is_that_of_a_thousand_single_draws(blocks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracked errors stay comparable, however many blocks are drawn at once."""
    random = np.random.default_rng(blocks)
    sums, counts = random.normal(100.0, 20.0, blocks), random.integers(1, 500, blocks)
    generator = np.random.default_rng(0)
    draws = [generator.integers(0, blocks, size=blocks) for _ in range(1000)]
    expected = np.std([sums[draw].sum() / counts[draw].sum() for draw in draws], ddof=1)
    for limit in (1, 2**10, 2**16):
        monkeypatch.setattr(metrics, "DRAWN_AT_ONCE", limit)
        assert stderr_of_ratio(sums, counts) == expected


@pytest.mark.parametrize("blocks", [0, 1])
def test_one_block_has_no_error_estimate(blocks: int) -> None:
    assert stderr_of_ratio([1.0] * blocks, [1] * blocks) is None


def test_gathered_blocks_by_hand() -> None:
    # 4 | 2 + 2 | 2 + 1, which is too few: it joins the block before it.
    assert gather_blocks([4.0, 1.0, 2.0, 3.0, 5.0], [4, 2, 2, 2, 1], 4) == ([4.0, 11.0], [4, 7])


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(1, 20))
def test_gathered_blocks_are_large_enough_and_complete(counts: list[int], tokens: int) -> None:
    sums = [float(count) for count in counts]
    block_sums, block_counts = gather_blocks(sums, counts, tokens)
    assert sum(block_counts) == sum(counts)
    assert block_sums == [float(count) for count in block_counts]
    assert len(block_counts) <= 1 or min(block_counts) >= tokens


def test_correlated_neighbours_are_not_treated_as_independent() -> None:
    """A hundred blocks of ten equal windows: resampled individually, the error would look three times smaller."""
    losses = np.repeat(np.random.default_rng(2).normal(3.0, 0.5, size=100), 10)
    alone = stderr_of_ratio(losses, [1] * 1000)
    gathered = stderr_of_ratio(*gather_blocks(list(losses), [1] * 1000, 10))
    assert alone is not None
    assert gathered == pytest.approx(alone * np.sqrt(10), rel=0.1)
