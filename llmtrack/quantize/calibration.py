"""Cut a calibration text for quantization into rows of token ids; it must differ from the scored text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llmtrack.errors import ScenarioError
from llmtrack.quality.corpora import Corpus
from llmtrack.quality.encoding import unknown_warning
from llmtrack.tensors.tokens import encode

ROW_TOKENS = 128
LEAST_ROWS = 4


@dataclass(frozen=True)
class Calibration:
    """Rows of `ROW_TOKENS` token ids, with name, digest and warnings of their corpus."""

    corpus: str
    digest: str
    rows: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = ()


def calibration_rows(ids: Sequence[int], tokens: int, width: int = ROW_TOKENS) -> tuple[tuple[int, ...], ...]:
    """Cut about so many tokens from a text, in rows of `width` that are evenly spread and do not overlap.

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
    """Encode a corpus by a transformers tokenizer and cut about so many tokens from it."""
    from llmtrack.quality.perplexity import SEPARATOR

    text = SEPARATOR.join(corpus.texts)
    ids = encode(tokenizer, text, special_tokens=False)
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
