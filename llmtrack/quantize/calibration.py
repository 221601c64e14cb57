"""Text that quantization may look at: cut into rows of token ids, and never the text that quality is judged by."""

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
        warnings: what must be said of the text in words.
    """

    corpus: str
    digest: str
    rows: tuple[tuple[int, ...], ...]
    warnings: tuple[str, ...] = ()


def calibration_rows(ids: Sequence[int], tokens: int, width: int = ROW_TOKENS) -> tuple[tuple[int, ...], ...]:
    """Cut rows out of a text, spread evenly over it, without overlap.

    Args:
        ids: token ids of the text.
        tokens: how many are wanted in all; as many whole rows as fit are taken.
        width: tokens of a row.

    Raises:
        ScenarioError: the text has less than `LEAST_ROWS` rows.
    """
    there = len(ids) // width
    rows = min(max(tokens // width, LEAST_ROWS), there)
    if there < LEAST_ROWS:
        raise ScenarioError(
            f"the calibration text has {len(ids)} tokens and {LEAST_ROWS * width} are needed: give a longer one",
            kind="unsupported",
        )
    starts = (index * there // rows * width for index in range(rows))
    return tuple(tuple(ids[start : start + width]) for start in starts)


def calibrate(corpus: Corpus, tokenizer: Any, tokens: int) -> Calibration:
    """Return calibration rows of a corpus, encoded by a transformers tokenizer."""
    from llmtrack.quality.perplexity import SEPARATOR

    text = SEPARATOR.join(corpus.texts)
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    unknown = 0
    if tokenizer.unk_token_id is not None:
        # What the text itself spells is known.
        unknown = max(ids.count(tokenizer.unk_token_id) - text.count(tokenizer.unk_token), 0)
    warnings = corpus.warnings + unknown_warning(
        unknown,
        len(ids),
        "tokens of the calibration text",
        "quantization does not see what the model does with it",
    )
    return Calibration(corpus.name, corpus.digest, calibration_rows(ids, tokens), warnings)
