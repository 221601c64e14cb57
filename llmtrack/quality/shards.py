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
    """Return the rows of each batch that a single worker would form; see `in_batches`.

    `lengths` are in tokens; the budget must be equal for all workers, whatever memory each has free.
    """
    rows = range(len(lengths))
    batches = in_batches(rows, lambda row: lengths[row], len, batch_size, budget)
    return [range(batch[0], batch[-1] + 1) for batch, _ in batches]


def share_out(costs: Sequence[int], of: int) -> list[list[int]]:
    """Distribute batches over shards of about equal cost; return the sorted batch numbers of each.

    Greedy and deterministic: the most expensive batch first, each to the cheapest shard so far, so that shards differ
    by at most one batch. There may be more shards than batches.
    """
    shards: list[list[int]] = [[] for _ in range(of)]
    loads = [(0, number) for number in range(of)]
    for batch in sorted(range(len(costs)), key=lambda batch: -costs[batch]):
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
    if any((part.text, part.of) != (first.text, first.of) for part in parts):
        raise ScenarioError(
            "workers tokenized or batched the text differently: give all of them the same model, tokenizer and text"
        )
    scored = join_scores(_collect([part.batches for part in parts], first.of, "batches, workers scored"))
    if sorted(scored.rows) != list(range(first.text.rows)):
        raise ScenarioError(f"workers scored {len(scored.rows)} of {first.text.rows} rows: measure again")
    return quality_of(first.text, scored)


def merge_drift(parts: Sequence[Compared]) -> Drift:
    """Merge the parts of a comparison with a reference, in any order and split.

    Raises:
        ScenarioError: workers read other tokens of the text, or a row is missing or was compared twice.
    """
    first = parts[0]
    if any((part.all_rows, part.ids_digest) != (first.all_rows, first.ids_digest) for part in parts):
        raise ScenarioError("workers tokenized the text differently: give all of them the same tokenizer and text")
    return drift_of(_collect([part.sums for part in parts], first.all_rows, "rows, workers compared"))


def _collect(parts: Sequence[Mapping[int, T]], of: int, description: str) -> list[T]:
    """Order the pieces of several workers by their numbers from 0; refuse missing ones and duplicates."""
    pieces = {number: piece for part in parts for number, piece in part.items()}
    if len(pieces) != sum(map(len, parts)) or set(pieces) != set(range(of)):
        raise ScenarioError(f"of {of} {description} {sorted(pieces)}: measure again")
    return [pieces[number] for number in range(of)]
