"""The figures of a scored text, from what scoring its rows gave: computed alike whoever scored them (pure functions)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from llmtrack.metrics import SPIKE
from llmtrack.quality.bootstrap import gather_blocks, stderr_of_ratio
from llmtrack.quality.encoding import lost_warning, unknown_warning
from llmtrack.spec.scores import RowSums, Scored, Text
from llmtrack.spec.task import PerplexityTask

GARBAGE_RATIO = 3.0
"""Perplexity over the reference's from which on the model is no longer the same one."""

Z_95 = 1.96


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

    @property
    def batch_size(self) -> int:
        """Rows of the largest batch."""
        return max(map(len, self.tokens_read), default=0)


def compute_perplexity(loss: float) -> float:
    """Return exp of a mean negative log-likelihood in nats; infinity where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def quality_of(text: Text, scored: Scored) -> Quality:
    """Return the figures of a text.

    Args:
        text: what was scored.
        scored: what scoring each of its rows gave, in any order.
    """
    # In the text's own order, in which the bootstrap draws them.
    order = sorted(range(len(scored.rows)), key=scored.rows.__getitem__)
    sums, counts = [scored.nats[at] for at in order], [scored.tokens[at] for at in order]
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
    )


def quality_warnings(quality: Quality) -> tuple[str, ...]:
    """Return what must be said of the text that was scored."""
    found: list[str] = [
        *unknown_warning(
            quality.unknown_tokens_scored,
            quality.tokens_scored,
            "scored tokens",
            "to predict that something unknown comes is easier than what comes, so figures of the text look too good",
        ),
        *lost_warning(quality.bytes_without_token, "they are neither predicted nor counted"),
    ]
    if quality.bytes_scored is None:
        found.append(
            "this tokenizer does not tell which text its tokens cover, so there are no bits_per_byte and no "
            "word_perplexity: use bos_rule=model and a max_length that cuts nothing, or a fast tokenizer"
        )
    return tuple(found)


def cut_warnings(quality: Quality, task: PerplexityTask) -> tuple[str, ...]:
    """Return what must be said of what was left out of the text."""
    found = []
    # What max_tokens leaves out of a stream was asked for.
    if quality.tokens_truncated and task.protocol == "documents":
        found.append(
            f"{quality.tokens_truncated} tokens were cut from documents longer than {task.max_length}: raise max_length"
        )
    if quality.documents_skipped:
        found.append(f"{quality.documents_skipped} document(s) of one token were left out: one token predicts nothing")
    return tuple(found)


def together(scored: Sequence[Scored]) -> Scored:
    """Return what several batches gave as one."""
    return Scored(
        rows=tuple(row for each in scored for row in each.rows),
        nats=tuple(nats for each in scored for nats in each.nats),
        tokens=tuple(count for each in scored for count in each.tokens),
        losses=tuple(loss for each in scored for loss in each.losses),
        read=tuple(batch for each in scored for batch in each.read),
    )


@dataclass(frozen=True)
class Drift:
    """What comparing next-token distributions gave.

    Attributes:
        kl_divergence: mean over tokens of KL(reference || model) in nats.
        top1_agreement: share of tokens (0 to 1) after which both find the same next token most likely.
        perplexity_ratio: perplexity of the model over that of the reference, on these tokens.
        tokens: tokens that were compared.
        loss_stderr: standard error of the difference of mean losses in nats, by bootstrap over the texts; None for one text.
        kl_stderr: that of the mean KL divergence, likewise.
    """

    kl_divergence: float
    top1_agreement: float
    perplexity_ratio: float
    tokens: int
    loss_stderr: float | None = None
    kl_stderr: float | None = None

    @property
    def ratio_interval(self) -> tuple[float, float]:
        """The 95 % interval of `perplexity_ratio`, as far as other text of this kind goes; the ratio twice for one text."""
        factor = math.exp(min(Z_95 * (self.loss_stderr or 0.0), 700.0))
        return self.perplexity_ratio / factor, self.perplexity_ratio * factor

    @property
    def kl_interval(self) -> tuple[float, float]:
        """The 95 % interval of `kl_divergence`, likewise."""
        width = Z_95 * (self.kl_stderr or 0.0)
        return max(0.0, self.kl_divergence - width), self.kl_divergence + width

    @property
    def finding(self) -> str | None:
        """What a reader must be told in words, or None."""
        figures = (
            f"on {self.tokens} tokens its perplexity is {self.perplexity_ratio:.2f} times the reference's, and it finds "
            f"the same next token most likely in {self.top1_agreement:.0%}"
        )
        if self.perplexity_ratio > GARBAGE_RATIO:
            return f"garbage: {figures}; this is not the same model any more"
        if self.perplexity_ratio > SPIKE:
            return f"quality spike: {figures}"
        return None


def drift_of(rows: Sequence[RowSums]) -> Drift:
    """Return how far a model is from a reference, from the sums of the rows that were compared, in the text's order."""
    counts = [row.tokens for row in rows]
    tokens = sum(counts)
    further = [row.nats - row.reference_nats for row in rows]
    kl = [row.kl for row in rows]
    return Drift(
        math.fsum(kl) / tokens,
        math.fsum(row.agreeing for row in rows) / tokens,
        math.exp(min(math.fsum(further) / tokens, 700.0)),
        tokens,
        stderr_of_ratio(further, counts),
        stderr_of_ratio(kl, counts),
    )
