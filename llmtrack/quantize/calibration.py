"""Calibration text for quantization, cut into rows of token ids; never the text used for evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmtrack.errors import ScenarioError
from llmtrack.quality.corpora import Corpus
from llmtrack.quality.encoding import unknown_warning

ROW_TOKENS = 128
LEAST_ROWS = 4
DEFAULT_TOKENS = 2048


@dataclass(frozen=True)
class Calibration:
    """Rows of a calibration text.

    Attributes:
        corpus: name of the text.
        digest: digest of the whole text that the rows are taken from.
        rows: token ids, `ROW_TOKENS` each.
        warnings: warnings about the text.
    """

    corpus: str
    digest: str
    rows: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = ()


def calibration_rows(ids: Sequence[int], tokens: int, width: int = ROW_TOKENS) -> tuple[tuple[int, ...], ...]:
    """Cut rows from a text, evenly spread and without overlap.

    Args:
        ids: token ids of the text.
        tokens: wanted tokens in all, rounded to whole rows.
        width: tokens of a row.

    Raises:
        ScenarioError: the text has fewer than `LEAST_ROWS` rows.
    """
    available = len(ids) // width
    rows = min(max(tokens // width, LEAST_ROWS), available)
    if available < LEAST_ROWS:
        raise ScenarioError(
            f"the calibration text has {len(ids)} tokens and {LEAST_ROWS * width} are needed: give a longer one",
            kind="unsupported",
        )
    starts = (index * available // rows * width for index in range(rows))
    return tuple(tuple(ids[start : start + width]) for start in starts)


def calibrate(corpus: Corpus, tokenizer: Any, tokens: int) -> Calibration:
    """Return calibration rows of a corpus, encoded by a transformers tokenizer."""
    from llmtrack.quality.perplexity import SEPARATOR

    text = SEPARATOR.join(corpus.texts)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    unknown = 0
    if tokenizer.unk_token_id is not None:
        # An unknown token spelled out in the text itself is not unknown.
        unknown = max(ids.count(tokenizer.unk_token_id) - text.count(tokenizer.unk_token), 0)
    warnings = corpus.warnings + unknown_warning(
        unknown,
        len(ids),
        "tokens of the calibration text",
        "quantization cannot calibrate on it",
    )
    return Calibration(corpus.name, corpus.digest, calibration_rows(ids, tokens), warnings)
