"""What scoring a text gave, as plain data that is sent: of all of it, or of the shard that one worker had."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """A text as a tokenizer and a protocol make it, whoever scores it.

    Its rows are what is scored at once: documents, or windows over the stream.

    Attributes:
        protocol: `documents` or `rolling`.
        rows: how many there are.
        bytes: UTF-8 bytes of the original text that the predicted tokens cover; None where the tokenizer does not tell.
        words: words of that text; None likewise.
        unknown: predicted tokens that stand for text which the vocabulary does not have.
        lost: bytes of the text, as far as it was kept, that the tokenizer has no token for.
        cut: tokens that are left out at the ends.
        skipped: documents of one token, which predict nothing.
        block: predicted tokens at least of what is drawn as one for the standard error; 0: each row is.
        tokens_digest: digest of the token ids that are read and predicted.
        text_digest: digest of the text that the predicted tokens cover; None where the tokenizer does not tell.
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


@dataclass(frozen=True)
class Scored:
    """What scoring some rows gave, in the order in which they were scored.

    Attributes:
        rows: the place of each in its text.
        nats: summed negative log-likelihood of the predicted tokens of each.
        tokens: number of them.
        losses: mean loss of each batch.
        read: tokens that were read of each row of each batch; the last of a row is only predicted.
    """

    rows: tuple[int, ...]
    nats: tuple[float, ...]
    tokens: tuple[int, ...]
    losses: tuple[float, ...]
    read: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Part:
    """What one worker scored of a text.

    Attributes:
        text: all of the text.
        of: into how many batches it is cut.
        batches: what scoring those that were this worker's gave, by their numbers from 0.
        seconds: how long that took; the model was loaded before.
    """

    text: Text
    of: int
    batches: dict[int, Scored]
    seconds: float


@dataclass(frozen=True)
class RowSums:
    """What comparing two models on a row gave, summed over its predicted tokens.

    Attributes:
        kl: KL(reference || model) in nats.
        agreeing: tokens after which both find the same next token most likely.
        nats: negative log-likelihood by the model.
        reference_nats: the same by the reference.
        tokens: number of them.
    """

    kl: float
    agreeing: float
    nats: float
    reference_nats: float
    tokens: int


@dataclass(frozen=True)
class Compared:
    """What one worker compared of a text.

    Attributes:
        all_rows: how many rows are compared by all workers.
        ids_digest: digest of their token ids.
        sums: what comparing those that were this worker's gave, by their numbers from 0.
        spent: seconds that it took; both models were loaded before.
    """

    all_rows: int
    ids_digest: str
    sums: dict[int, RowSums]
    spent: float
