"""Choose how many rows to score at once: a fixed number, or as many as fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from llmtrack.devices import on_gpu
from llmtrack.engine import EngineInfo
from llmtrack.errors import is_out_of_memory
from llmtrack.measure.memory import free_memory

MOST_TOKENS, MOST_TOKENS_ON_GPU = 2048, 65_536
"""Tokens per batch beyond which no tested device became faster."""

ACTIVATIONS = 16
"""Memory per token while scoring, as a multiple of a layer's input and output, which the engine reports."""

SHARE = 2
"""Divisor of the free memory: the part that a batch may take."""

Row = TypeVar("Row")
Result = TypeVar("Result")


def token_budget(info: EngineInfo, free: int | None = None) -> int:
    """Return the maximum number of tokens per batch, pads included.

    `free` is the free memory in bytes; None: as reported by the device.
    """
    most = MOST_TOKENS_ON_GPU if on_gpu(info.device) else MOST_TOKENS
    if not info.score_bytes_per_token:
        return most
    free_bytes = free_memory(info.device) if free is None else free
    return max(1, min(most, free_bytes // SHARE // (ACTIVATIONS * info.score_bytes_per_token)))


def in_batches(
    rows: Iterable[Row],
    length_of: Callable[[Row], int],
    score: Callable[[Sequence[Row]], Result],
    batch_size: int | None,
    budget: int,
) -> Iterator[tuple[Sequence[Row], Result]]:
    """Score rows batch by batch, reading them lazily; yield the rows of each batch with their result.

    Without a batch size, each batch has as many rows as a budget of tokens allows; when memory runs out, the budget is
    halved permanently and the batch is retried, unless it is a single row.
    """
    source, waiting = iter(rows), list[Row]()
    while batch := _next_batch(waiting, source, length_of, batch_size, budget):
        scored: Result | None = None
        try:
            scored = score(batch)
        except Exception as error:
            if batch_size is not None or len(batch) == 1 or not is_out_of_memory(error):
                raise
        if scored is None:
            # Outside of the handler, whose exception would keep the intermediate tensors alive.
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
    """Return the next rows without removing them from `waiting`; empty at the end."""
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
