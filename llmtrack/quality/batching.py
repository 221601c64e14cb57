"""How many rows are scored at once: as many as asked for, or as many as memory has room for, found as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from llmtrack.devices import on_gpu
from llmtrack.engine import EngineInfo
from llmtrack.errors import is_out_of_memory
from llmtrack.measure.room import free_memory

MOST_TOKENS, MOST_TOKENS_ON_GPU = 2048, 65_536
"""Tokens of a batch, beyond which no device that was tried got faster."""

ACTIVATIONS = 16
"""What a token takes while it is scored, as a multiple of a layer's input and output, which is all that an engine tells."""

SHARE = 2
"""A batch is meant to take this part of what is free."""

Row = TypeVar("Row")
Given = TypeVar("Given")


def token_budget(info: EngineInfo, free: int | None = None) -> int:
    """Return how many tokens, pads included, a batch may have.

    Args:
        info: the engine.
        free: bytes that are free on its device; None: as many as it says.
    """
    most = MOST_TOKENS_ON_GPU if on_gpu(info.device) else MOST_TOKENS
    if not info.score_bytes_per_token:
        return most
    there = free_memory(info.device) if free is None else free
    return max(1, min(most, there // SHARE // (ACTIVATIONS * info.score_bytes_per_token)))


def in_batches(
    rows: Iterable[Row],
    length_of: Callable[[Row], int],
    score: Callable[[Sequence[Row]], Given],
    batch_size: int | None,
    budget: int,
) -> Iterator[tuple[Sequence[Row], Given]]:
    """Score rows batch by batch, and yield the rows of each batch, with what came of it.

    Without a batch size each batch has as many rows as the budget allows; where memory does not suffice, the budget is
    halved, for good, and the batch tried again.

    Args:
        rows: in the order in which they are scored; taken as they are needed.
        length_of: tokens of a row.
        score: scores a batch.
        batch_size: rows per batch; None: by the budget.
        budget: tokens of a batch at most.

    Raises:
        Exception: what `score` raises; that memory does not suffice, only of a single row or a batch of a given size.
    """
    source, waiting = iter(rows), list[Row]()
    while batch := _next_batch(waiting, source, length_of, batch_size, budget):
        scored: Given | None = None
        try:
            scored = score(batch)
        except Exception as error:
            if batch_size is not None or len(batch) == 1 or not is_out_of_memory(error):
                raise
        if scored is None:
            # Out of the handler, or its error would keep what was computed so far.
            budget = max(len(batch) * max(map(length_of, batch)) // 2, 1)
            continue
        yield batch, scored
        del waiting[: len(batch)]


def _next_batch(
    waiting: list[Row],
    source: Iterator[Row],
    length_of: Callable[[Row], int],
    batch_size: int | None,
    budget: int,
) -> Sequence[Row]:
    """Return the next rows, which go on waiting; none if there are no more."""
    size = longest = 0
    while batch_size is None or size < batch_size:
        if size == len(waiting):
            waiting.extend(islice(source, 1))
        if size == len(waiting):
            break
        longest = max(longest, length_of(waiting[size]))
        if batch_size is None and size and longest * (size + 1) > budget:
            break
        size += 1
    return waiting[:size]
