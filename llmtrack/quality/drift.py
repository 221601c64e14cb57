"""Compare a model's next-token distributions with those of a reference, token by token on the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.measure.finite import not_finite
from llmtrack.quality.encoding import Encoded, encode_text
from llmtrack.quality.metrics import Drift, drift_of
from llmtrack.spec.scores import RowSums

CHUNK_BYTES = 64 * MIB


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
    """Compare the distributions of two engines with the same tokenizer, each text alone and without pads.

    Args:
        engine: the engine under test.
        reference: the engine to compare with.
        texts: read from the first on.
        max_length: maximum tokens read per text.
        bos_rule: see `encode_text`.
        max_tokens: maximum predicted tokens over all texts.
        on_row: called after each text with the number of tokens compared so far.

    Raises:
        ScenarioError: the vocabularies or the tokens of a text differ, no text has two tokens, or logits are not
            finite.
    """
    rows = []
    for row in rows_to_compare(engine, reference, texts, max_length, bos_rule, max_tokens):
        rows.append(compare_row(engine, reference, row))
        on_row(sum(row.tokens for row in rows))
    return drift_of(rows)


def rows_to_compare(
    engine: Engine,
    reference: Engine,
    texts: Sequence[str],
    max_length: int,
    bos_rule: str,
    max_tokens: int,
) -> list[Encoded]:
    """Encode texts from the first on, until there are enough tokens to compare two engines.

    Raises:
        ScenarioError: the vocabularies or the tokens of a text differ, or no text has two tokens.
    """
    if engine.info.vocab_size != reference.info.vocab_size:
        raise ScenarioError(
            f"the vocabularies differ in size (reference: {reference.info.vocab_size} tokens, this model: "
            f"{engine.info.vocab_size}): their distributions are not comparable",
            kind="unsupported",
        )
    rows: list[Encoded] = []
    tokens = 0
    for text in texts:
        keep = min(max_length, max_tokens - tokens + 1)
        row = encode_text(engine, text, bos_rule, keep)
        if not row.predicted:
            continue
        if encode_text(reference, text, bos_rule, keep).ids != row.ids:
            raise ScenarioError(
                "the reference tokenizes the text differently: their distributions are not comparable",
                kind="unsupported",
            )
        rows.append(row)
        tokens += row.predicted
        if tokens >= max_tokens:
            break
    if not rows:
        raise ScenarioError("no text has two tokens, so there is nothing to compare", kind="unsupported")
    return rows


def compare_row(engine: Engine, reference: Engine, row: Encoded) -> RowSums:
    """Compare two engines on one row.

    Raises:
        ScenarioError: logits are not finite.
    """
    first = row.given - 1
    logits, expected = (_logits(model, row.ids)[first:] for model in (engine, reference))
    kl, agreeing, nats, reference_nats = _sums(logits, expected, row.ids[first:]).tolist()
    return RowSums(kl, agreeing, nats, reference_nats, row.predicted)


def _logits(engine: Engine, ids: Sequence[int]) -> torch.Tensor:
    logits = engine.next_token_logits(ids[:-1])
    if not torch.isfinite(torch.logsumexp(logits, dim=-1)).all():
        raise not_finite(f"the logits of {engine.info.model_id} are", engine)
    return logits


def _sums(logits: torch.Tensor, expected: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
    """Sum over the predicted tokens of a row: KL, agreement, and both negative log-likelihoods."""
    targets = torch.tensor(ids[1:])
    sums = torch.zeros(4, dtype=torch.float64)
    chunk = max(1, CHUNK_BYTES // (8 * logits.shape[1]))
    for first in range(0, len(targets), chunk):
        part = slice(first, first + chunk)
        log_q = torch.log_softmax(logits[part].double(), dim=-1)
        log_p = torch.log_softmax(expected[part].double(), dim=-1)
        # A token of probability zero in the reference (-inf) contributes nothing.
        sums[0] += torch.where(log_p.isneginf(), 0.0, log_p.exp() * (log_p - log_q)).sum()
        sums[1] += (logits[part].argmax(-1) == expected[part].argmax(-1)).sum()
        target = targets[part, None]
        sums[2] -= log_q.gather(1, target).sum()
        sums[3] -= log_p.gather(1, target).sum()
    return sums
