"""Score texts by the convention that a task names."""

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
"""Bytes: how batches are planned must not depend on what one worker has free."""


def score_as_asked(
    engine: Engine,
    texts: Sequence[str],
    task: PerplexityTask,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score texts as documents or as one stream; see `score_documents` and `score_rolling`.

    Args:
        engine: a loaded engine.
        texts: what is scored; the task's own corpus is not read.
        task: the convention.
        on_batch: told of each batch as it is scored.
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
    """Turn texts into the rows that `score_as_asked` scores; raises what that does before it scores."""
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
    """Score the batches of a text that are one shard.

    Args:
        engine: a loaded engine.
        ready: all of the text.
        task: the convention, and which shard.
        on_batch: told of each batch as it is scored.

    Returns:
        What each batch gave, by its number from 0, and how many batches all of the text has.

    Raises:
        ScenarioError: a batch cannot be held, or a loss is not finite.
    """
    lengths = [tokens_of(row) for row in ready.rows]
    planned = plan_batches(lengths, task.batch_size, token_budget(engine.info, PLENTY))
    # Rows of unequal lengths are padded to the longest.
    costs = [len(batch) * max(lengths[row] for row in batch) for batch in planned]
    mine = share_out(costs, task.of)[task.number]
    found = {}
    for done, number in enumerate(mine, start=1):
        rows = [ready.rows[row] for row in planned[number]]
        told: list[Batch] = []
        scored = score_rows(engine, rows, partial(len, rows), task.batch_size, task.padding_side, told.append)
        found[number] = replace(scored, rows=tuple(ready.places[row] for row in planned[number]))
        on_batch(replace(told[-1], number=done, of=len(mine)))
    return found, len(planned)
