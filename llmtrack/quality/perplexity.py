"""Perplexity by the `documents` protocol: each text on its own, in padded batches, weighted by tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DataLoader

from llmtrack.engines.base import Engine
from llmtrack.engines.padding import pad_rows
from llmtrack.errors import ScenarioError, UsageError


@dataclass(frozen=True)
class Batch:
    """What scoring one batch gave.

    Attributes:
        number: 1 for the first batch.
        of: number of batches.
        loss: mean negative log-likelihood of its predicted tokens in nats.
        tokens: number of predicted tokens.
    """

    number: int
    of: int
    loss: float
    tokens: int

    def __str__(self) -> str:
        return f"batch {self.number}/{self.of} - loss {self.loss:.4f}, tokens {self.tokens}"


@dataclass(frozen=True)
class Quality:
    """How well a model predicts a corpus.

    Attributes:
        loss: token-weighted mean negative log-likelihood in nats, over all documents.
        perplexity: exp(loss).
        bits_per_byte: bits per UTF-8 byte of the predicted text.
        tokens_scored: predicted tokens.
        bytes_scored: UTF-8 bytes of their text.
        tokens_truncated: tokens cut from documents longer than `max_length`.
        documents_scored: documents with at least one predicted token.
        documents_skipped: documents of one token, which predict nothing.
        batch_losses: mean loss of each batch.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    tokens_scored: int
    bytes_scored: int
    tokens_truncated: int
    documents_scored: int
    documents_skipped: int
    batch_losses: tuple[float, ...]


def compute_perplexity(loss: float) -> float:
    """Return exp of a mean negative log-likelihood in nats; infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def score_documents(
    engine: Engine,
    texts: Sequence[str],
    *,
    max_length: int = 512,
    batch_size: int = 4,
    padding_side: str = "right",
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score documents one by one in padded batches.

    A batch weighs as many tokens as it really predicts, so the result depends neither on the batch size nor
    on the padding side nor on the order of the documents.

    Args:
        engine: a loaded engine.
        texts: the documents.
        max_length: tokens of a document that are scored at most; the rest is cut and counted.
        batch_size: documents per batch.
        padding_side: `right` or `left`.
        on_batch: told of each batch as it is scored.

    Raises:
        UsageError: `max_length` is under 2 or over the model's context, or `batch_size` is under 1.
        ScenarioError: no document has two tokens, or a loss is not finite.
    """
    context = engine.info.context_length
    if max_length < 2 or (context is not None and max_length > context):
        raise UsageError(
            f"max_length {max_length} is not possible: use 2 to {context or 'the context length'}"
        )
    if batch_size < 1:
        raise UsageError(f"batch_size {batch_size} is not possible: use 1 or more")
    encoded = [engine.encode(text) for text in texts]
    kept = [ids[:max_length] for ids in encoded]
    scorable = [ids for ids in kept if len(ids) > 1]
    if not scorable:
        raise ScenarioError(
            "no document has two tokens, so there is nothing to predict: use longer texts", "unsupported"
        )
    loader: DataLoader[Any] = DataLoader(
        scorable,  # type: ignore[arg-type] # a list is a dataset
        batch_size=batch_size,
        collate_fn=partial(pad_rows, pad_id=0, side=padding_side),
    )
    sums: list[float] = []
    counts: list[int] = []
    for number, (input_ids, attention_mask) in enumerate(loader, start=1):
        row_sums, row_counts = engine.score(input_ids, attention_mask)
        sums.append(float(row_sums.sum()))
        counts.append(int(row_counts.sum()))
        if not math.isfinite(sums[-1]):
            raise ScenarioError(
                f"the loss of batch {number}/{len(loader)} is not finite in {engine.info.dtype_label}: "
                "use dtype=float32 or bfloat16, or look for damaged weights",
                "non_finite",
            )
        on_batch(Batch(number, len(loader), sums[-1] / counts[-1], counts[-1]))
    tokens = sum(counts)
    loss = math.fsum(sums) / tokens
    # The first token of a document is given, not predicted, so its text does not count.
    scored_bytes = sum(len(engine.decode(ids[1:]).encode()) for ids in scorable)
    return Quality(
        loss=loss,
        perplexity=compute_perplexity(loss),
        bits_per_byte=math.fsum(sums) / math.log(2) / max(scored_bytes, 1),
        tokens_scored=tokens,
        bytes_scored=scored_bytes,
        tokens_truncated=sum(len(ids) for ids in encoded) - sum(len(ids) for ids in kept),
        documents_scored=len(scorable),
        documents_skipped=len(kept) - len(scorable),
        batch_losses=tuple(each / count for each, count in zip(sums, counts, strict=True)),
    )
