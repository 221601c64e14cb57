"""Score texts by the convention of a task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from llmtrack.engine import Engine
from llmtrack.quality.batching import token_budget
from llmtrack.quality.figures import Quality
from llmtrack.quality.perplexity import (
    Batch,
    Prepared,
    check,
    prepare_documents,
    prepare_rolling,
    score_documents,
    score_rolling,
    score_rows,
    tokens_of,
)
from llmtrack.quality.shards import plan_batches, share_out
from llmtrack.spec.scores import Scored
from llmtrack.spec.task import PerplexityTask, ShardTask

PLENTY = 2**62
"""Bytes assumed free: the plan of the batches must not depend on the memory of one worker."""


def score_as_asked(
    engine: Engine,
    texts: Sequence[str],
    task: PerplexityTask,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score texts as documents or as one stream; see `score_documents` and `score_rolling`.

    Args:
        engine: a loaded engine.
        texts: the texts to score; the task's own corpus is not read.
        task: the convention.
        on_batch: called after each batch.
    """
    score: Callable[..., Quality] = score_documents
    if task.protocol == "rolling":
        score = partial(score_rolling, stride=task.stride, max_tokens=task.max_tokens)
    return score(
        engine,
        texts,
        max_length=task.max_length,
        bos_rule=task.bos_rule,
        batch_size=task.batch_size,
        padding_side=task.padding_side,
        on_batch=on_batch,
    )


def prepare(engine: Engine, texts: Sequence[str], task: PerplexityTask) -> Prepared:
    """Turn texts into the rows that `score_as_asked` scores; raises the same errors."""
    check(engine, task.max_length, task.batch_size)
    if task.protocol == "rolling":
        return prepare_rolling(engine, texts, task.max_length, task.stride, task.bos_rule, task.max_tokens)
    return prepare_documents(engine, texts, task.max_length, task.bos_rule)


def score_shard(
    engine: Engine,
    ready: Prepared,
    task: ShardTask,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> tuple[dict[int, Scored], int]:
    """Score the batches of one shard of a text.

    Args:
        engine: a loaded engine.
        ready: the whole text.
        task: the convention and the shard.
        on_batch: called after each batch.

    Returns:
        The scores of each batch by its number from 0, and the number of batches of the whole text.

    Raises:
        ScenarioError: a batch does not fit into memory, or a loss is not finite.
    """
    lengths = [tokens_of(row) for row in ready.rows]
    planned = plan_batches(lengths, task.batch_size, token_budget(engine.info, PLENTY))
    # Rows of unequal lengths are padded to the longest.
    costs = [len(batch) * max(lengths[row] for row in batch) for batch in planned]
    mine = share_out(costs, task.of)[task.number]
    found = {}
    for done, number in enumerate(mine, start=1):
        rows = [ready.rows[row] for row in planned[number]]
        reported: list[Batch] = []
        scored = score_rows(engine, rows, partial(len, rows), task.batch_size, task.padding_side, reported.append)
        found[number] = replace(scored, rows=tuple(ready.places[row] for row in planned[number]))
        on_batch(replace(reported[-1], number=done, of=len(mine)))
    return found, len(planned)
