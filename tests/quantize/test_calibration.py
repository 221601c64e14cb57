"""Rows of calibration text, warnings, and the bound on quality."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtrack.errors import ScenarioError, UsageError
from llmtrack.quality.corpora import Corpus
from llmtrack.quantize.calibration import LEAST_ROWS, calibrate, calibration_rows
from llmtrack.quantize.options import share
from tests.quality.tokenizers import byte_fallback, unigram, word_piece, wrap


def test_rows_are_spread_over_the_text():
    assert calibration_rows(range(100), tokens=8, width=2) == ((0, 1), (24, 25), (50, 51), (74, 75))


def test_a_short_text_is_used_completely():
    assert calibration_rows(range(9), tokens=1000, width=2) == ((0, 1), (2, 3), (4, 5), (6, 7))


def test_a_text_that_is_too_short_is_refused_in_one_line():
    with pytest.raises(ScenarioError, match="has 500 tokens and 512 are needed: give a longer one"):
        calibration_rows(range(500), tokens=2048)


@pytest.mark.parametrize(
    ("make", "unk", "text", "unknown"),
    [
        (word_piece, "[UNK]", "one xyz two", 1),
        (unigram, "<unk>", "one 中文 two 中", 2),
        (byte_fallback, "<unk>", "one 中文", 0),
        (word_piece, "[UNK]", "one [UNK] two", 0),
    ],
)
def test_unknown_tokens_and_blank_rows_are_warned_of(make, unk, text, unknown):
    tokenizer = wrap(make(), unk_token=unk).tokenizer
    calibration = calibrate(Corpus.from_texts("c", [*[text] * 300, "", " "]), tokenizer, 2048)
    blank, *others = calibration.warnings
    assert "2 blank row(s)" in blank
    assert [warning.split(" of ")[0] for warning in others] == ([str(300 * unknown)] if unknown else [])


@pytest.mark.slow(1)
@given(st.integers(8, 2000), st.integers(1, 3000), st.integers(1, 2))
def test_rows_do_not_overlap(length, tokens, width):
    rows = calibration_rows(range(length), tokens, width)
    ids = [token for row in rows for token in row]
    assert len(set(ids)) == len(ids)
    assert len(rows) >= LEAST_ROWS
    assert all(len(row) == width for row in rows)


@pytest.mark.parametrize(("text", "value"), [("5%", 0.05), ("0.05", 0.05), (" 3 %", 0.03), ("0", 0.0), ("none", None)])
def test_a_bound_on_quality_is_parsed(text, value):
    assert share(text) == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize("text", ["much", "-1%", "20", ""])
def test_an_invalid_bound_is_refused(text):
    with pytest.raises(UsageError, match=r"use for example 3%, 0\.03 or none"):
        share(text)
