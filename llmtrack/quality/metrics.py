"""Compute the metrics of a scored text, and of a comparison with a reference, from sums over rows (pure functions)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from llmtrack.metrics import SPIKE
from llmtrack.quality.encoding import lost_warning, unknown_warning
from llmtrack.spec.scores import Item, RowSums, Scored, Text
from llmtrack.spec.task import PerplexityTask

GARBAGE_RATIO = 3.0
"""Ratio of the perplexity to the reference's above which the output is classified as garbage."""

Z_95 = 1.96

RESAMPLES = 1000
DRAWN_AT_ONCE = 2**16
"""Blocks drawn by one call: few enough for the cache, and enough to hide the cost of calls."""


@dataclass(frozen=True)
class Quality:
    """Quality of a model's predictions on a corpus.

    What depends on the original text is None if the tokenizer does not report offsets.

    Attributes:
        loss: token-weighted mean negative log-likelihood in nats, over all documents or windows.
        loss_stderr: its standard error, by bootstrap over documents or blocks of the stream; None if there is only one.
        word_perplexity: exp of the nats per white-space separated word of the predicted text; infinity without words.
        bits_per_byte: bits per UTF-8 byte of the predicted text; None if it is empty, too.
        tokens_scored: predicted tokens; the other `..._scored` are of the text that they cover.
        unknown_tokens_scored: predicted tokens for text outside of the vocabulary.
        bytes_without_token: bytes of the kept text that no token represents.
        tokens_truncated: tokens omitted: of documents longer than `max_length`, or of the stream after `max_tokens`.
        tokens_digest: digest of the token ids read and predicted.
        text_digest: digest of the text that the predicted tokens cover.
        batch_losses: mean loss of each batch, in the order of scoring.
        tokens_read: tokens read of each row of each batch; the last token of a row is only predicted.
        documents_scored: documents with at least one predicted token; None in `rolling`.
        documents_skipped: documents of one token, which predict nothing; None in `rolling`.
        windows_scored: None in `documents`.
        items: results of the first documents; empty in `rolling`.
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
    items: tuple[Item, ...] = ()

    @property
    def figures(self) -> dict[str, float]:
        """The known metrics, by their tracked names."""
        excluded = {"batch_losses", "tokens_read", "tokens_digest", "text_digest", "items"}
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in excluded}
        return {name: float(value) for name, value in values.items() if value is not None}

    @property
    def facts(self) -> dict[str, str]:
        """Digests of the scored tokens and text, by their tracked names."""
        digests = {"scored_tokens_digest": self.tokens_digest, "scored_text_digest": self.text_digest}
        return {name: value for name, value in digests.items() if value is not None}

    @property
    def batch_size(self) -> int:
        """Rows of the largest batch."""
        return max(map(len, self.tokens_read), default=0)


def compute_perplexity(loss: float) -> float:
    """Exponentiate a mean negative log-likelihood in nats; infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def quality_of(text: Text, scored: Scored) -> Quality:
    """Compute the metrics of a text from the scores of its rows, in any order."""
    # In the order of the text, which the bootstrap depends on.
    order = sorted(range(len(scored.rows)), key=scored.rows.__getitem__)
    sums, counts = [scored.nats[index] for index in order], [scored.tokens[index] for index in order]
    nats, tokens = math.fsum(sums), sum(counts)
    blocks = gather_blocks(sums, counts, text.block) if text.block else (sums, counts)
    per_word = compute_perplexity(nats / text.words) if text.words else math.inf
    documents = text.protocol == "documents"
    return Quality(
        loss=nats / tokens,
        loss_stderr=stderr_of_ratio(*blocks),
        perplexity=compute_perplexity(nats / tokens),
        word_perplexity=None if text.words is None else per_word,
        bits_per_byte=nats / math.log(2) / text.bytes if text.bytes else None,
        tokens_scored=tokens,
        bytes_scored=text.bytes,
        words_scored=text.words,
        unknown_tokens_scored=text.unknown,
        bytes_without_token=text.lost,
        tokens_truncated=text.cut,
        tokens_digest=text.tokens_digest,
        text_digest=text.text_digest,
        batch_losses=scored.losses,
        tokens_read=scored.read,
        documents_scored=text.rows if documents else None,
        documents_skipped=text.skipped if documents else None,
        windows_scored=None if documents else text.rows,
        items=tuple(_item(*row) for row in zip(text.names, sums, counts, strict=False)),
    )


def _item(name: str, nats: float, tokens: int) -> Item:
    loss = nats / tokens
    return Item(name, {"perplexity": compute_perplexity(loss), "loss": loss, "tokens_scored": tokens})


def quality_warnings(quality: Quality) -> tuple[str, ...]:
    """Warn of what distorts the metrics of the scored text."""
    warnings: list[str] = [
        *unknown_warning(
            quality.unknown_tokens_scored,
            quality.tokens_scored,
            "scored tokens",
            "unknown tokens are easier to predict than the text itself, so its metrics look too good",
        ),
        *lost_warning(quality.bytes_without_token, "they are neither predicted nor counted"),
    ]
    if quality.bytes_scored is None:
        warnings.append(
            "this tokenizer does not report which text its tokens cover, so there are no bits_per_byte and no "
            "word_perplexity: use bos_rule=model and a max_length that cuts nothing, or a fast tokenizer"
        )
    return tuple(warnings)


def cut_warnings(quality: Quality, task: PerplexityTask) -> tuple[str, ...]:
    """Warn of text that was omitted."""
    warnings = []
    # Truncation by max_tokens was requested.
    if quality.tokens_truncated and task.protocol == "documents":
        warnings.append(
            f"{quality.tokens_truncated} tokens were cut from documents longer than {task.max_length}: raise max_length"
        )
    if quality.documents_skipped:
        warnings.append(
            f"{quality.documents_skipped} document(s) of one token were omitted: one token predicts nothing"
        )
    return tuple(warnings)


def join_scores(scored: Sequence[Scored]) -> Scored:
    """Join the scores of several batches."""
    return Scored(
        rows=tuple(row for batch in scored for row in batch.rows),
        nats=tuple(nats for batch in scored for nats in batch.nats),
        tokens=tuple(count for batch in scored for count in batch.tokens),
        losses=tuple(loss for batch in scored for loss in batch.losses),
        read=tuple(tokens for batch in scored for tokens in batch.read),
    )


@dataclass(frozen=True)
class Drift:
    """The difference of a model's next-token distributions from a reference's.

    Attributes:
        kl_divergence: mean over tokens of KL(reference || model) in nats.
        top1_agreement: share of tokens (0 to 1) after which both find the same next token most likely.
        perplexity_ratio: perplexity of the model over that of the reference, on these tokens.
        loss_stderr: standard error of the difference of mean losses in nats, by bootstrap over the texts; None for one
            text.
        kl_stderr: standard error of `kl_divergence`, likewise.
        rows: sums of each text; the last one may be cut.
    """

    kl_divergence: float
    top1_agreement: float
    perplexity_ratio: float
    tokens: int
    loss_stderr: float | None = None
    kl_stderr: float | None = None
    rows: tuple[RowSums, ...] = ()

    @property
    def ratio_interval(self) -> tuple[float, float]:
        """The 95 % interval of `perplexity_ratio` over texts of this kind; degenerate for one text."""
        factor = math.exp(min(Z_95 * (self.loss_stderr or 0.0), 700.0))
        return self.perplexity_ratio / factor, self.perplexity_ratio * factor

    @property
    def kl_interval(self) -> tuple[float, float]:
        """The 95 % interval of `kl_divergence`, likewise."""
        width = Z_95 * (self.kl_stderr or 0.0)
        return max(0.0, self.kl_divergence - width), self.kl_divergence + width

    @property
    def finding(self) -> str | None:
        """A warning if the drift is large, or None."""
        figures = (
            f"on {self.tokens} tokens its perplexity is {self.perplexity_ratio:.2f} times the reference's, and it finds "
            f"the same next token most likely in {self.top1_agreement:.0%}"
        )
        if self.perplexity_ratio > GARBAGE_RATIO:
            return f"garbage: {figures}; its output is no longer that of the model"
        if self.perplexity_ratio > SPIKE:
            return f"quality spike: {figures}"
        return None


def drift_of(rows: Sequence[RowSums]) -> Drift:
    """Compute the drift from the sums of the compared rows, in the order of the text."""
    counts = [row.tokens for row in rows]
    tokens = sum(counts)
    loss_changes = [row.nats - row.reference_nats for row in rows]
    kl = [row.kl for row in rows]
    return Drift(
        kl_divergence=math.fsum(kl) / tokens,
        top1_agreement=math.fsum(row.agreeing for row in rows) / tokens,
        perplexity_ratio=math.exp(min(math.fsum(loss_changes) / tokens, 700.0)),
        tokens=tokens,
        loss_stderr=stderr_of_ratio(loss_changes, counts),
        kl_stderr=stderr_of_ratio(kl, counts),
        rows=tuple(rows),
    )


def stderr_of_ratio(sums: Sequence[float], counts: Sequence[int]) -> float | None:
    """Estimate the standard error of `sum(sums) / sum(counts)` by bootstrap; None for fewer than two blocks.

    Blocks (documents, or parts of a stream) are drawn with replacement, and the ratio is computed over each draw as
    a whole: tokens within a block are correlated and are not resampled individually. The result is deterministic.

    Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), chapters 6 and 8.
    """
    if len(sums) < 2:
        return None
    values, weights = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    generator = np.random.default_rng(0)
    ratios: list[float] = []
    rows = max(1, DRAWN_AT_ONCE // len(values))
    while len(ratios) < RESAMPLES:
        picks = generator.integers(0, len(values), size=(min(rows, RESAMPLES - len(ratios)), len(values)))
        ratios += (values[picks].sum(axis=1) / weights[picks].sum(axis=1)).tolist()
    return float(np.std(ratios, ddof=1))


def gather_blocks(sums: Sequence[float], counts: Sequence[int], tokens: int) -> tuple[list[float], list[int]]:
    """Join neighbours into blocks of at least `tokens` tokens each; a remainder joins the last block.

    With a small stride, each window scores a few tokens, and neighbouring windows are so correlated that resampling
    them individually would underestimate the error.
    """
    block_sums: list[float] = []
    block_counts: list[int] = []
    for value, count in zip(sums, counts, strict=True):
        if block_counts and block_counts[-1] < tokens:
            block_sums[-1] += value
            block_counts[-1] += count
        else:
            block_sums.append(value)
            block_counts.append(count)
    if len(block_counts) > 1 and block_counts[-1] < tokens:
        last_sum, last_count = block_sums.pop(), block_counts.pop()
        block_sums[-1] += last_sum
        block_counts[-1] += last_count
    return block_sums, block_counts
