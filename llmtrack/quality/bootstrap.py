"""How sure a loss is: its standard error by resampling whole documents or stretches of a stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000


def stderr_of_ratio(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """Return the bootstrap standard error of `sum(sums) / sum(counts)`, or None for fewer than two blocks.

    Blocks are drawn with replacement, and each draw's ratio is taken over all that was drawn: tokens of one
    block depend on one another and are not drawn on their own. The same blocks give the same result.

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
    """Join neighbours into blocks of at least `tokens` tokens each; what is left at the end joins the last one.

    With a small stride, windows score a few tokens each, and neighbours are so alike that drawing them one
    by one would make the error look smaller than it is.
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
