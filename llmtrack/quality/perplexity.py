"""Perplexity by two protocols: `documents`, each text on its own, and `rolling`, windows over one stream.

Both weigh by tokens and take the exponential of the global mean; figures of the two are never compared.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain

import numpy as np
import torch

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.measure.finite import not_finite
from llmtrack.measure.room import check_memory
from llmtrack.quality import ahead
from llmtrack.quality.batching import in_batches, token_budget
from llmtrack.quality.bootstrap import gather_blocks, stderr_of_ratio
from llmtrack.quality.encoding import Encoded, encode_text
from llmtrack.quality.windows import Window, plan_windows
from llmtrack.tensors.padding import pad_rows

SEPARATOR = "\n\n"
"""What stands between the texts of a stream."""

# Tokens, and the window over them that is a row of a batch: no copy is made before the batch.
Row = tuple[Sequence[int], Window]


@dataclass(frozen=True)
class Batch:
    """What scoring one batch gave.

    Attributes:
        number: 1 for the first batch.
        of: number of batches; while a text is still read, as many as it looks like.
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
        loss: token-weighted mean negative log-likelihood in nats, over all documents or windows.
        loss_stderr: its standard error, by bootstrap over documents or stretches of the stream; None if there
            is only one.
        perplexity: exp(loss).
        word_perplexity: exp of the nats per white-space separated word of the predicted text; infinity if it
            has none, None where the tokenizer does not tell which text that is.
        bits_per_byte: bits per UTF-8 byte of the predicted text; None where the tokenizer does not tell, or there is none.
        tokens_scored: predicted tokens.
        bytes_scored: UTF-8 bytes of the original text that they cover; None where the tokenizer does not tell.
        words_scored: words of that text; None likewise.
        unknown_tokens_scored: of the predicted tokens, those that stand for text which the vocabulary does not have.
        bytes_without_token: bytes of the text, as far as it was kept, that the tokenizer has no token for.
        tokens_truncated: tokens left out: of documents longer than `max_length`, or of the stream after
            `max_tokens`.
        tokens_digest: digest of the token ids that were read and predicted.
        text_digest: digest of the text that the predicted tokens cover; None where the tokenizer does not tell.
        batch_losses: mean loss of each batch, in the order they were scored.
        tokens_read: tokens that were read of each row of each batch; the last of a row is only predicted.
        documents_scored: documents with at least one predicted token; None in `rolling`.
        documents_skipped: documents of one token, which predict nothing; None in `rolling`.
        windows_scored: windows over the stream; None in `documents`.
    """

    loss: float
    loss_stderr: float | None
    perplexity: float
    word_perplexity: float | None
    bits_per_byte: float | None
    tokens_scored: int
    bytes_scored: int | None
    words_scored: int | None
    unknown_tokens_scored: int
    bytes_without_token: int
    tokens_truncated: int
    tokens_digest: str
    text_digest: str | None
    batch_losses: tuple[float, ...]
    tokens_read: tuple[tuple[int, ...], ...] = ()
    documents_scored: int | None = None
    documents_skipped: int | None = None
    windows_scored: int | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The numbers that are known, by the names under which they are tracked."""
        apart = {"batch_losses", "tokens_read", "tokens_digest", "text_digest"}
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in apart}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def facts(self) -> dict[str, str]:
        """What was scored, by the names under which it is tracked."""
        found = {"scored_tokens_digest": self.tokens_digest, "scored_text_digest": self.text_digest}
        return {name: value for name, value in found.items() if value is not None}


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
    bos_rule: str = "tokenizer",
    batch_size: int | None = 4,
    padding_side: str = "right",
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score documents one by one in padded batches.

    A batch weighs as many tokens as it really predicts, so the result depends neither on the batch size nor
    on the padding side nor on the order of the documents. They are scored longest first: documents of like
    length share a batch, which saves padding, and if memory does not suffice, that shows at once.

    Args:
        engine: a loaded engine.
        texts: the documents.
        max_length: tokens of a document that are scored at most; the rest is cut and counted.
        bos_rule: what is put before each document; see `llmtrack.quality.encoding.encode_text`.
        batch_size: documents per batch; None: as many as memory has room for.
        padding_side: `right` or `left`.
        on_batch: told of each batch as it is scored.

    Raises:
        UsageError: `max_length` is under 2 or over the model's context, `batch_size` is under 1, or the
            `bos_rule` is unknown or not possible.
        ScenarioError: no document has two tokens, or a loss is not finite.
    """
    _check(engine, max_length, batch_size)
    encoded = [encode_text(engine, text, bos_rule, keep=max_length) for text in texts]
    scorable = [each for each in encoded if each.predicted]
    if not scorable:
        raise ScenarioError(
            "no document has two tokens, so there is nothing to predict: use longer texts", "unsupported"
        )
    order = sorted(range(len(scorable)), key=lambda index: -len(scorable[index].ids))
    rows: list[Row] = [
        (each.ids, Window(0, len(each.ids), each.given)) for each in (scorable[index] for index in order)
    ]
    scored = _score_rows(engine, rows, lambda: len(rows), batch_size, padding_side, on_batch)
    # Back in the documents' own order, in which the bootstrap draws them.
    sums = [total for _, total in sorted(zip(order, scored.sums, strict=True))]
    counts = [each.predicted for each in scorable]
    return _quality(
        sums,
        counts,
        scorable,
        stderr=stderr_of_ratio(sums, counts),
        lost=sum(each.lost for each in encoded),
        tokens_truncated=sum(each.cut for each in encoded),
        batch_losses=scored.losses,
        tokens_read=scored.read,
        documents_scored=len(scorable),
        documents_skipped=len(encoded) - len(scorable),
    )


def score_rolling(
    engine: Engine,
    texts: Sequence[str],
    *,
    max_length: int = 512,
    stride: int = 0,
    bos_rule: str = "tokenizer",
    max_tokens: int = 0,
    batch_size: int | None = 4,
    padding_side: str = "right",
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score texts as one stream, through windows that overlap where `stride` is under `max_length`.

    The texts are joined by two line feeds. Each token of the stream is scored exactly once (see
    `llmtrack.quality.windows`); only the first, where nothing is put before it, is given. A GPU begins before all of it
    is read (`llmtrack.quality.ahead`); should the stream begin otherwise than it seemed, `on_batch` is told of batch 1 again.

    Args:
        engine: a loaded engine.
        texts: what the stream is made of.
        max_length: tokens that the model reads at most to predict one.
        stride: new tokens of each window after the first; 0: `max_length`.
        bos_rule: what is put before the stream; see `llmtrack.quality.encoding.encode_text`.
        max_tokens: tokens of the stream that are used at most, what is put before it included; 0: all.
        batch_size: windows per batch; None: as many as memory has room for.
        padding_side: `right` or `left`; only a batch with the first window can need pads.
        on_batch: told of each batch as it is scored.

    Raises:
        UsageError: `max_length` is under 2 or over the model's context, `stride` is over `max_length`,
            `batch_size` is under 1, or the `bos_rule` is unknown or not possible.
        ScenarioError: the stream has no token to predict, or a loss is not finite.
    """
    _check(engine, max_length, batch_size)
    encode = partial(encode_text, engine, bos_rule=bos_rule, keep=max_tokens or None)

    def plan(tokens: int, given: int) -> tuple[Window, ...]:
        return plan_windows(tokens, max_length, stride or max_length, given)

    def score(stream: ahead.Stream) -> _ScoredRows:
        rows = stream.rows()
        return _score_rows(engine, rows, lambda: stream.expected, batch_size, padding_side, on_batch)

    on_gpu = engine.info.device.startswith("cuda")
    with ahead.read(SEPARATOR.join(texts), encode, plan, ahead=on_gpu) as stream:
        try:
            scored = score(stream)
        except ahead.WrongGuessError:
            scored = score(stream)
        tokens, windows = stream.tokens, stream.windows
    counts = [window.scored for window in windows]
    return _quality(
        scored.sums,
        counts,
        [tokens],
        stderr=stderr_of_ratio(*gather_blocks(scored.sums, counts, max_length)),
        lost=tokens.lost,
        tokens_truncated=tokens.cut,
        batch_losses=scored.losses,
        tokens_read=scored.read,
        windows_scored=len(windows),
    )


def _check(engine: Engine, max_length: int, batch_size: int | None) -> None:
    context = engine.info.context_length
    if max_length < 2 or (context is not None and max_length > context):
        raise UsageError(
            f"max_length {max_length} is not possible: use 2 to {context or 'the context length'}"
        )
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size {batch_size} is not possible: use 1 or more")


@dataclass(frozen=True)
class _ScoredRows:
    """What scoring rows gave: the sum of each, and of each batch the mean loss and the tokens that were read of its rows."""

    sums: list[float]
    losses: tuple[float, ...]
    read: tuple[tuple[int, ...], ...]


def _score_rows(
    engine: Engine,
    rows: Iterable[Row],
    number_of_rows: Callable[[], int],
    batch_size: int | None,
    padding_side: str,
    on_batch: Callable[[Batch], None],
) -> _ScoredRows:
    """Return the summed negative log-likelihood of each row, and what is known of each batch.

    Args:
        rows: the longest first.
        number_of_rows: returns how many there are, as far as it is known.

    Raises:
        ScenarioError: there is no row, a batch cannot be held, or a loss is not finite.
    """
    source = iter(rows)
    first = next(source, None)
    if first is None:
        raise ScenarioError("the text has no token to predict: use a longer one", "unsupported")
    together = min(batch_size or 1, number_of_rows())
    check_memory(engine.info, together, _tokens_of(first), cached=False, scored=True)
    sums: list[float] = []
    losses: list[float] = []
    read: list[tuple[int, ...]] = []
    batches = in_batches(
        chain([first], source),
        _tokens_of,
        lambda batch: engine.score(*_collate(batch, padding_side)),
        batch_size,
        token_budget(engine.info),
    )
    for number, (batch, (row_sums, row_counts)) in enumerate(batches, start=1):
        total, tokens = float(row_sums.sum()), int(row_counts.sum())
        left = number_of_rows() - len(sums) - len(batch)
        of = number + max(0, -(-left // len(batch)))
        if not math.isfinite(total):
            raise not_finite(f"the loss of batch {number}/{of} is", engine)
        # The last token of a row is only predicted.
        read.append(tuple(_tokens_of(row) - 1 for row in batch))
        sums += row_sums.tolist()
        losses.append(total / tokens)
        on_batch(Batch(number, of, losses[-1], tokens))
    return _ScoredRows(sums, tuple(losses), tuple(read))


def _tokens_of(row: Row) -> int:
    _, window = row
    return window.end - window.begin


def _collate(rows: Sequence[Row], side: str) -> tuple[torch.Tensor, ...]:
    """Return the arguments of `Engine.score` for a batch of rows."""
    ids, mask = pad_rows([ids[window.begin : window.end] for ids, window in rows], 0, side)
    context = [window.first_scored - window.begin for _, window in rows]
    if all(tokens == 1 for tokens in context):
        return ids, mask
    flags = [[0] * tokens + [1] * window.scored for tokens, (_, window) in zip(context, rows, strict=True)]
    return ids, mask, pad_rows(flags, 0, side)[0].bool()


def _quality(
    sums: Sequence[float],
    counts: Sequence[int],
    rows: Sequence[Encoded],
    *,
    stderr: float | None,
    lost: int,
    tokens_truncated: int,
    batch_losses: tuple[float, ...],
    tokens_read: tuple[tuple[int, ...], ...],
    **scored: int,
) -> Quality:
    nats, tokens = math.fsum(sums), sum(counts)
    scored_bytes, words = _sum(each.bytes for each in rows), _sum(each.words for each in rows)
    texts = [each.text for each in rows if each.text is not None]
    return Quality(
        loss=nats / tokens,
        loss_stderr=stderr,
        perplexity=compute_perplexity(nats / tokens),
        word_perplexity=None if words is None else compute_perplexity(nats / words) if words else math.inf,
        bits_per_byte=nats / math.log(2) / scored_bytes if scored_bytes else None,
        tokens_scored=tokens,
        bytes_scored=scored_bytes,
        words_scored=words,
        unknown_tokens_scored=sum(each.unknown for each in rows),
        bytes_without_token=lost,
        tokens_truncated=tokens_truncated,
        tokens_digest=_digest(np.asarray(each.ids, dtype="<i8").tobytes() for each in rows),
        text_digest=_digest(texts) if len(texts) == len(rows) else None,
        batch_losses=batch_losses,
        tokens_read=tokens_read,
        **scored,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """Return a sum, or None if a part of it is not known."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _digest(parts: Iterable[bytes]) -> str:
    """Return 16 hex digits that tell the parts, their order and where each ends."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:16]
