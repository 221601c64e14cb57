"""Estimate the standard error of a loss by resampling documents or blocks of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000


def stderr_of_ratio(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the bootstrap standard error of `sum(sums) / sum(counts)`, or None for fewer than two blocks.

    Blocks are drawn with replacement, and the ratio is computed over each draw as a whole: tokens within a block are
    correlated and are not resampled individually. The result is deterministic.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 8.
    """
    if len(sums) < 2:
        return None
    values, weights = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    generator = np.random.default_rng(0)
    ratios = []
    for _ in range(RESAMPLES):
        picks = generator.integers(0, len(values), size=len(values))
        ratios.append(values[picks].sum() / weights[picks].sum())
    return float(np.std(ratios, ddof=1))


def gather_blocks(sums: Sequence[float], counts: Sequence[int], tokens: int) -> tuple[list[float], list[int]]:
    """Join neighbours into blocks of at least `tokens` tokens each; a remainder joins the last block.

    With a small stride, each window scores a few tokens, and neighbouring windows are so correlated that resampling
    them individually would underestimate the error.
    """
    block_sums: list[float] = []
    block_counts: list[int] = []
    for value, count in zip(sums, counts, strict=True):
        if block_counts and block_counts[-1] < tokens:
            block_sums[-1] += value
            block_counts[-1] += count
        else:
            block_sums.append(value)
            block_counts.append(count)
    if len(block_counts) > 1 and block_counts[-1] < tokens:
        last_sum, last_count = block_sums.pop(), block_counts.pop()
        block_sums[-1] += last_sum
        block_counts[-1] += last_count
    return block_sums, block_counts
