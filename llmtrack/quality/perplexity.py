"""Score perplexity by two protocols: `documents`, each text on its own, and `rolling`, windows over one stream.

Both weigh by tokens and exponentiate the global mean; their values are not comparable with each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch

from llmtrack.devices import on_gpu
from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.host.formatting import truncate
from llmtrack.measure.finite import not_finite
from llmtrack.measure.memory import check_memory
from llmtrack.quality.batching import in_batches, token_budget
from llmtrack.quality.encoding import Encoded, digest_of, encode_text, tokens_digest
from llmtrack.quality.metrics import Quality, quality_of
from llmtrack.quality.shards import plan_batches, share_out
from llmtrack.quality.windows import Row, Stream, Window, WrongGuessError, plan_windows, stream_windows
from llmtrack.spec import parameter
from llmtrack.spec.scores import Scored, Text
from llmtrack.spec.task import PerplexityTask, ShardTask
from llmtrack.tensors.padding import pad_rows

SEPARATOR = "\n\n"
"""Separator between the texts of a stream."""

MOST_ITEMS = 200
"""Maximum documents with results of their own."""
_BEGINNING = 60
"""Characters of a document in its name."""

_PLENTY = 2**62
"""Bytes assumed free: the plan of the batches must not depend on the memory of one worker."""


@dataclass(frozen=True)
class Batch:
    """The result of scoring one batch, numbered from 1.

    Attributes:
        of: number of batches; an estimate while the text is still being tokenized.
        loss: mean negative log-likelihood of its predicted tokens in nats.
        tokens: predicted tokens.
    """

    number: int
    of: int
    loss: float
    tokens: int

    def __str__(self) -> str:
        return f"batch {self.number}/{self.of} - loss {self.loss:.4f}, tokens {self.tokens}"


@dataclass(frozen=True)
class Prepared:
    """A text ready to be scored: its rows in the order of scoring, and the number of each in the text, from 0."""

    text: Text
    rows: Sequence[Row]
    numbers: Sequence[int]


def score_texts(
    engine: Engine,
    texts: Sequence[str],
    task: PerplexityTask,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> Quality:
    """Score texts by a task's protocol; see `score_documents` and `score_rolling`."""
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
    """Turn texts into the rows that `score_texts` scores; raises the same errors."""
    _check(engine, task.max_length, task.batch_size)
    if task.protocol == "rolling":
        return _prepare_rolling(engine, texts, task.max_length, task.stride, task.bos_rule, task.max_tokens)
    return _prepare_documents(engine, texts, task.max_length, task.bos_rule)


def score_shard(
    engine: Engine,
    prepared: Prepared,
    task: ShardTask,
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> tuple[dict[int, Scored], int]:
    """Score the batches of one shard of a text.

    Returns:
        The scores of each batch by its number in the text, from 0, and the number of batches of the text.

    Raises:
        ScenarioError: a batch does not fit into memory, or a loss is not finite.
    """
    lengths = [_length(row) for row in prepared.rows]
    batches = plan_batches(lengths, task.batch_size, token_budget(engine.info, _PLENTY))
    # Rows of unequal lengths are padded to the longest.
    costs = [len(batch) * max(lengths[row] for row in batch) for batch in batches]
    shard = share_out(costs, task.of)[task.number]
    scores = {}
    for done, number in enumerate(shard, start=1):
        rows = [prepared.rows[row] for row in batches[number]]
        reports: list[Batch] = []
        scored = _score_rows(engine, rows, partial(len, rows), task.batch_size, task.padding_side, reports.append)
        scores[number] = replace(scored, rows=tuple(prepared.numbers[row] for row in batches[number]))
        on_batch(replace(reports[-1], number=done, of=len(shard)))
    return scores, len(batches)


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
    """Score documents individually, in padded batches.

    A batch is weighted by its predicted tokens, so the result does not depend on batch size, padding side or order of
    the documents. They are scored longest first: documents of similar length share a batch, which saves padding, and
    running out of memory shows at once.

    Args:
        max_length: maximum tokens scored per document; the rest is cut and counted.
        bos_rule: see `llmtrack.quality.encoding.encode_text`.
        batch_size: documents per batch; None: as many as fit into memory.
        padding_side: `right` or `left`.
        on_batch: called after each batch.

    Raises:
        UsageError: `max_length` is under 2 or over the model's context, `batch_size` is under 1, or the `bos_rule` is
            unknown or not possible.
        ScenarioError: no document has two tokens, or a loss is not finite.
    """
    _check(engine, max_length, batch_size)
    prepared = _prepare_documents(engine, parameter.require_texts("text", texts), max_length, bos_rule)
    scored = _score_rows(engine, prepared.rows, lambda: len(prepared.rows), batch_size, padding_side, on_batch)
    return quality_of(prepared.text, replace(scored, rows=tuple(prepared.numbers)))


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
    """Score texts as one stream, through windows that overlap if `stride` is under `max_length`.

    The texts are joined by two line feeds. Each token of the stream is scored exactly once (see
    `llmtrack.quality.windows`), except a first token without a prefix, which is given. A GPU starts before the stream
    is fully tokenized; if the guessed tokens were wrong, `on_batch` is called with batch 1 again.

    Args:
        texts: the parts of the stream.
        max_length: maximum tokens read to predict one.
        stride: new tokens of each window after the first; 0: `max_length`.
        bos_rule: see `llmtrack.quality.encoding.encode_text`.
        max_tokens: maximum tokens of the stream, the prefix included; 0: all.
        batch_size: windows per batch; None: as many as fit into memory.
        padding_side: `right` or `left`; only a batch with the first window can need pads.
        on_batch: called after each batch.

    Raises:
        UsageError: `max_length` is under 2 or over the model's context, `stride` is over `max_length`, `batch_size` is
            under 1, or the `bos_rule` is unknown or not possible.
        ScenarioError: the stream has no token to predict, or a loss is not finite.
    """
    _check(engine, max_length, batch_size)

    def score(stream: Stream) -> Scored:
        rows = stream.rows()
        return _score_rows(engine, rows, lambda: stream.expected, batch_size, padding_side, on_batch)

    with _stream(engine, parameter.require_texts("text", texts), max_length, stride, bos_rule, max_tokens) as stream:
        try:
            scored = score(stream)
        except WrongGuessError:
            scored = score(stream)
        tokens, windows = stream.tokens, stream.windows
    return quality_of(_stream_text(tokens, len(windows), max_length), scored)


def _prepare_documents(engine: Engine, texts: Sequence[str], max_length: int, bos_rule: str) -> Prepared:
    """Turn documents into rows, longest first."""
    encoded = [encode_text(engine, text, bos_rule, keep=max_length) for text in texts]
    scorable = [document for document in encoded if document.predicted]
    if not scorable:
        raise ScenarioError(
            "no document has two tokens, so there is nothing to predict: use longer texts", kind="unsupported"
        )
    order = sorted(range(len(scorable)), key=lambda index: -len(scorable[index].ids))
    longest_first = (scorable[index] for index in order)
    rows: list[Row] = [(document.ids, Window(0, len(document.ids), document.given)) for document in longest_first]
    text = _text(
        "documents",
        scorable,
        len(rows),
        lost=sum(document.lost for document in encoded),
        cut=sum(document.cut for document in encoded),
        skipped=len(encoded) - len(scorable),
        names=_names(texts, [document.predicted > 0 for document in encoded]),
    )
    return Prepared(text, rows, order)


def _names(texts: Sequence[str], scorable: Sequence[bool]) -> tuple[str, ...]:
    """Name the first scorable documents by their number in the corpus, from 1, and their beginning."""
    numbers = [number for number, is_scorable in enumerate(scorable, start=1) if is_scorable][:MOST_ITEMS]
    return tuple(f"{number}: {truncate(' '.join(texts[number - 1].split()), _BEGINNING, ' ...')}" for number in numbers)


def _prepare_rolling(
    engine: Engine, texts: Sequence[str], max_length: int, stride: int, bos_rule: str, max_tokens: int
) -> Prepared:
    """Turn texts into the windows of one stream, like `score_rolling`, but fully tokenized first."""
    with _stream(engine, texts, max_length, stride, bos_rule, max_tokens, early=False) as stream:
        rows = list(stream.rows())
        if not rows:
            raise _nothing_to_predict()
        return Prepared(_stream_text(stream.tokens, len(rows), max_length), rows, range(len(rows)))


def _stream(
    engine: Engine,
    texts: Sequence[str],
    max_length: int,
    stride: int,
    bos_rule: str,
    max_tokens: int,
    early: bool = True,
) -> AbstractContextManager[Stream]:
    encode = partial(encode_text, engine, bos_rule=bos_rule, keep=max_tokens or None)

    def plan(tokens: int, given: int) -> tuple[Window, ...]:
        return plan_windows(tokens, max_length, stride or max_length, given)

    return stream_windows(SEPARATOR.join(texts), encode, plan, early=early and on_gpu(engine.info.device))


def _stream_text(tokens: Encoded, windows: int, max_length: int) -> Text:
    return _text("rolling", [tokens], windows, lost=tokens.lost, cut=tokens.cut, block=max_length)


def _check(engine: Engine, max_length: int, batch_size: int | None) -> None:
    context = engine.info.context_length
    if max_length < 2 or (context is not None and max_length > context):
        raise UsageError(f"max_length {max_length} is not possible: use 2 to {context or 'the context length'}")
    if batch_size is not None and batch_size < 1:
        raise UsageError(f"batch_size {batch_size} is not possible: use 1 or more")


def _score_rows(
    engine: Engine,
    rows: Iterable[Row],
    number_of_rows: Callable[[], int],
    batch_size: int | None,
    padding_side: str,
    on_batch: Callable[[Batch], None],
) -> Scored:
    """Score rows, longest first, batch by batch; number them from 0 in this order.

    `number_of_rows` may be an estimate while they are being read.
    """
    source = iter(rows)
    first = next(source, None)
    if first is None:
        raise _nothing_to_predict()
    rows_per_batch = min(batch_size or 1, number_of_rows())
    check_memory(engine.info, rows_per_batch, _length(first), cached=False, scored=True)
    nats: list[float] = []
    counts: list[int] = []
    losses: list[float] = []
    read: list[tuple[int, ...]] = []
    batches = in_batches(
        chain([first], source),
        _length,
        lambda batch: engine.score(*_collate(batch, padding_side)),
        batch_size,
        token_budget(engine.info),
    )
    for number, (batch, (row_sums, row_counts)) in enumerate(batches, start=1):
        total, tokens = float(row_sums.sum()), int(row_counts.sum())
        remaining = number_of_rows() - len(nats) - len(batch)
        of = number + max(0, -(-remaining // len(batch)))
        if not math.isfinite(total):
            raise not_finite(f"the loss of batch {number}/{of} is", engine)
        # The last token of a row is only predicted.
        read.append(tuple(_length(row) - 1 for row in batch))
        nats += row_sums.tolist()
        counts += [window.scored for _, window in batch]
        losses.append(total / tokens)
        on_batch(Batch(number, of, losses[-1], tokens))
    return Scored(tuple(range(len(nats))), tuple(nats), tuple(counts), tuple(losses), tuple(read))


def _length(row: Row) -> int:
    _, window = row
    return window.end - window.begin


def _nothing_to_predict() -> ScenarioError:
    return ScenarioError("the text has no token to predict: use a longer one", kind="unsupported")


def _collate(rows: Sequence[Row], side: str) -> tuple[torch.Tensor, ...]:
    """Convert a batch of rows to the arguments of `Engine.score`."""
    ids, mask = pad_rows([ids[window.begin : window.end] for ids, window in rows], 0, side)
    if all(window.first_scored - window.begin == 1 for _, window in rows):
        return ids, mask
    flags = [[0] * (window.first_scored - window.begin) + [1] * window.scored for _, window in rows]
    return ids, mask, pad_rows(flags, 0, side)[0].bool()


def _text(
    protocol: str,
    encoded: Sequence[Encoded],
    rows: int,
    *,
    lost: int,
    cut: int,
    skipped: int = 0,
    block: int = 0,
    names: tuple[str, ...] = (),
) -> Text:
    texts = [part.text for part in encoded if part.text is not None]
    return Text(
        protocol=protocol,
        rows=rows,
        bytes=_sum(part.bytes for part in encoded),
        words=_sum(part.words for part in encoded),
        unknown=sum(part.unknown for part in encoded),
        lost=lost,
        cut=cut,
        skipped=skipped,
        block=block,
        tokens_digest=tokens_digest(encoded),
        text_digest=digest_of(texts) if len(texts) == len(encoded) else None,
        names=names,
    )


def _sum(values: Iterable[int | None]) -> int | None:
    """Sum values; None if any is unknown."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)
