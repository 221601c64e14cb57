"""Scoring results as plain data to send between processes: of a whole text, or of one worker's shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Item:
    """The result of one item of a text, such as a document.

    Attributes:
        name: its number in the corpus, and its beginning.
    """

    name: str
    values: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A text as encoded by a tokenizer and cut by a protocol, regardless of who scores it.

    Its rows are the units that are scored: documents, or windows over the stream.

    Attributes:
        bytes: UTF-8 bytes of the original text covered by the predicted tokens; None if the tokenizer reports no
            offsets.
        words: of that text; None likewise.
        unknown: predicted tokens that stand for text outside the vocabulary.
        lost: bytes of the text that the tokenizer dropped.
        cut: tokens cut off at the ends.
        skipped: documents of one token, which predict nothing.
        block: minimum number of predicted tokens per resampling block of the standard error; 0 for one block per row.
        tokens_digest: digest of the token ids read and predicted.
        text_digest: digest of the text that `bytes` counts; None likewise.
        names: of the first rows, if they are documents.
    """

    protocol: str
    rows: int
    bytes: int | None
    words: int | None
    unknown: int
    lost: int
    cut: int
    skipped: int
    block: int
    tokens_digest: str
    text_digest: str | None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scored:
    """Scores of some rows, in the order they were scored.

    Attributes:
        rows: index of each row in its text.
        nats: summed negative log-likelihood of each row.
        read: tokens read of each row, per batch; the last token of a row is only predicted.
    """

    rows: tuple[int, ...]
    nats: tuple[float, ...]
    tokens: tuple[int, ...]
    losses: tuple[float, ...]
    read: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Part:
    """One worker's share of the scores of a text.

    Attributes:
        of: number of batches of the whole text.
        batches: scores of this worker's batches, by batch number from 0.
        seconds: without loading the model.
    """

    text: Text
    of: int
    batches: dict[int, Scored]
    seconds: float


@dataclass(frozen=True)
class RowSums:
    """Comparison of two models on one row, summed over its predicted tokens.

    Attributes:
        kl: KL(reference || model) in nats.
        agreeing: positions at which both models rank the same token first.
        nats: negative log-likelihood under the model.
        reference_nats: the same under the reference.
    """

    kl: float
    agreeing: float
    nats: float
    reference_nats: float
    tokens: int


@dataclass(frozen=True)
class Compared:
    """One worker's share of a comparison of two models.

    Attributes:
        all_rows: rows compared by all workers together.
        ids_digest: digest of their token ids.
        sums: of this worker's rows, by row number from 0.
        spent: seconds without loading the models.
    """

    all_rows: int
    ids_digest: str
    sums: dict[int, RowSums]
    spent: float
