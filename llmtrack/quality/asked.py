"""Score texts by the convention that a task names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from llmtrack.engine import Engine
from llmtrack.quality.perplexity import Batch, Quality, score_documents, score_rolling
from llmtrack.scenario import PerplexityTask


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
