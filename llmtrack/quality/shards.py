"""Split a text into shards that are scored independently, and merge the results (pure functions).

The unit of sharding is a batch as a single worker would form it, so that each is computed identically: the last digits
of a row's sum depend on the other rows of its batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeVar

from llmtrack.errors import ScenarioError
from llmtrack.quality.batching import in_batches
from llmtrack.quality.metrics import Drift, Quality, drift_of, join_scores, quality_of
from llmtrack.spec.scores import Compared, Part

T = TypeVar("T")


def plan_batches(lengths: Sequence[int], batch_size: int | None, budget: int) -> list[range]:
    """Return the rows of each batch that a single worker would form.

    Args:
        lengths: tokens of each row, in the order of scoring.
        batch_size: rows per batch; None: by the budget.
        budget: maximum tokens per batch; the same for each worker, whatever memory it has free.
    """
    rows = range(len(lengths))
    batches = in_batches(rows, lambda row: lengths[row], len, batch_size, budget)
    return [range(batch[0], batch[-1] + 1) for batch, _ in batches]


def share_out(costs: Sequence[int], of: int) -> list[list[int]]:
    """Distribute batches over shards of about equal cost, deterministically.

    Greedy: the most expensive batch first, each to the cheapest shard so far, so that shards differ by at most one
    batch. There may be more shards than batches.

    Args:
        costs: tokens of each batch, pads included.
        of: number of shards.

    Returns:
        The batch numbers of each shard, in order.
    """
    shards: list[list[int]] = [[] for _ in range(of)]
    loads = [(0, number) for number in range(of)]
    for batch in sorted(range(len(costs)), key=lambda each: -costs[each]):
        load, number = loads[0]
        shards[number].append(batch)
        heapq.heapreplace(loads, (load + costs[batch], number))
    return [sorted(shard) for shard in shards]


def merge(parts: Sequence[Part]) -> Quality:
    """Merge the parts of a scored text, in any order and split, into its metrics.

    Sums are exact (`math.fsum`) and batches are put in the order of a single worker, so the metrics equal those of one
    worker.

    Raises:
        ScenarioError: workers read other tokens of the text, or a batch is missing or was scored twice.
    """
    first = parts[0]
    if any((each.text, each.of) != (first.text, first.of) for each in parts):
        raise ScenarioError(
            "workers tokenized or batched the text differently: give all of them the same model, tokenizer and text"
        )
    whole = join_scores(_each_once([part.batches for part in parts], first.of, "batches, workers scored"))
    if sorted(whole.rows) != list(range(first.text.rows)):
        raise ScenarioError(f"workers scored {len(whole.rows)} of {first.text.rows} rows: measure again")
    return quality_of(first.text, whole)


def merge_drift(parts: Sequence[Compared]) -> Drift:
    """Merge the parts of a comparison with a reference, in any order and split.

    Raises:
        ScenarioError: workers read other tokens of the text, or a row is missing or was compared twice.
    """
    first = parts[0]
    if any((each.all_rows, each.ids_digest) != (first.all_rows, first.ids_digest) for each in parts):
        raise ScenarioError("workers tokenized the text differently: give all of them the same tokenizer and text")
    return drift_of(_each_once([part.sums for part in parts], first.all_rows, "rows, workers compared"))


def _each_once(parts: Sequence[Mapping[int, T]], of: int, what: str) -> list[T]:
    """Return the pieces of several workers, ordered by their numbers from 0.

    Raises:
        ScenarioError: a piece is missing or occurs twice.
    """
    found = {number: piece for part in parts for number, piece in part.items()}
    if len(found) != sum(map(len, parts)) or set(found) != set(range(of)):
        raise ScenarioError(f"of {of} {what} {sorted(found)}: measure again")
    return [found[number] for number in range(of)]
