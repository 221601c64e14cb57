"""How far a model's next-token distributions are from those of a reference, token by token on the same text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError
from llmtrack.measure.finite import not_finite
from llmtrack.quality.bootstrap import stderr_of_ratio
from llmtrack.quality.encoding import encode_text

CHUNK_BYTES = 64 * 2**20
Z_95 = 1.96

SPIKE_RATIO = 1.1
"""Perplexity over the reference's from which on the difference is said in words."""
GARBAGE_RATIO = 3.0
"""Perplexity over the reference's from which on the model is no longer the same one."""


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
        if self.perplexity_ratio > SPIKE_RATIO:
            return f"quality spike: {figures}"
        return None


def compare_distributions(
    engine: Engine,
    reference: Engine,
    texts: Sequence[str],
    *,
    max_length: int = 512,
    bos_rule: str = "tokenizer",
    max_tokens: int = 1024,
    on_row: Callable[[int], None] = lambda tokens: None,
) -> Drift:
    """Compare the distributions of two engines of one tokenizer, each text alone and without pads.

    Args:
        engine: the one that is judged.
        reference: the one that it is compared with.
        texts: what both read, from the first on.
        max_length: tokens of a text that are read at most.
        bos_rule: what is put before each text, as in scoring.
        max_tokens: predicted tokens at most, over all texts.
        on_row: told how many tokens have been compared, after each text.

    Raises:
        ScenarioError: the vocabularies or the tokens of a text differ, no text has two tokens, or logits are not finite.
    """
    if engine.info.vocab_size != reference.info.vocab_size:
        raise ScenarioError(
            f"the reference has {reference.info.vocab_size} tokens in its vocabulary and this model "
            f"{engine.info.vocab_size}: their distributions cannot be compared",
            "unsupported",
        )
    rows: list[torch.Tensor] = []
    counts: list[int] = []
    tokens = 0
    for text in texts:
        keep = min(max_length, max_tokens - tokens + 1)
        row = encode_text(engine, text, bos_rule, keep)
        if not row.predicted:
            continue
        if encode_text(reference, text, bos_rule, keep).ids != row.ids:
            raise ScenarioError(
                "the reference's tokenizer makes other tokens of the text: their distributions cannot be compared",
                "unsupported",
            )
        first = row.given - 1
        own, theirs = (_logits(each, row.ids)[first:] for each in (engine, reference))
        rows.append(_row(own, theirs, row.ids[first:]))
        counts.append(row.predicted)
        tokens += row.predicted
        on_row(tokens)
        if tokens >= max_tokens:
            break
    if not tokens:
        raise ScenarioError("no text has two tokens, so there is nothing to compare", "unsupported")
    sums = torch.stack(rows)
    kl, agreeing, nll, reference_nll = (sums.sum(0) / tokens).tolist()
    return Drift(
        kl,
        agreeing,
        math.exp(min(nll - reference_nll, 700.0)),
        tokens,
        stderr_of_ratio((sums[:, 2] - sums[:, 3]).tolist(), counts),
        stderr_of_ratio(sums[:, 0].tolist(), counts),
    )


def _logits(engine: Engine, ids: Sequence[int]) -> torch.Tensor:
    logits = engine.next_token_logits(ids[:-1])
    if not torch.isfinite(torch.logsumexp(logits, dim=-1)).all():
        raise not_finite(f"the logits of {engine.info.model_id} are", engine)
    return logits


def _row(logits: torch.Tensor, expected: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Return sums over the predicted tokens of a row: KL, agreement, and both negative log-likelihoods."""
    targets = torch.tensor(ids[1:])
    sums = torch.zeros(4, dtype=torch.float64)
    chunk = max(1, CHUNK_BYTES // (8 * logits.shape[1]))
    for first in range(0, len(targets), chunk):
        part = slice(first, first + chunk)
        own = torch.log_softmax(logits[part].double(), dim=-1)
        theirs = torch.log_softmax(expected[part].double(), dim=-1)
        # What the reference rules out (-inf) adds nothing.
        sums[0] += torch.where(theirs.isneginf(), 0.0, theirs.exp() * (theirs - own)).sum()
        sums[1] += (logits[part].argmax(-1) == expected[part].argmax(-1)).sum()
        at = targets[part, None]
        sums[2] -= own.gather(1, at).sum()
        sums[3] -= theirs.gather(1, at).sum()
    return sums
