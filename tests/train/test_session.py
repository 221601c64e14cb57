"""Warnings of a training session about its text."""

from __future__ import annotations

import pytest

from llmtrack.spec.task import TrainTask
from llmtrack.train.data import Split
from llmtrack.train.session import _windows
from tests.quality.tokenizers import byte_fallback, unigram, without_unknown, word_piece, wrap


@pytest.mark.parametrize(
    ("make", "roles", "text", "warning"),
    [
        (word_piece, {"unk_token": "[UNK]"}, "one xyz two", "1 of 3 tokens to train on represent"),
        (unigram, {"unk_token": "<unk>"}, "one 中文 two", "1 of 3 tokens to train on represent"),
        (without_unknown, {}, "ab 12 c", "no token for 3 bytes"),
        (byte_fallback, {"unk_token": "<unk>"}, "one 中文", None),
    ],
)
def test_text_outside_of_the_vocabulary_is_warned_of(make, roles, text, warning):
    engine, task = wrap(make(), **roles), TrainTask(sequence_length=8)
    windows, warnings = _windows(engine, Split((text,), ("two",), "document"), task)
    assert len(windows)
    assert len(warnings) == (warning is not None)
    assert warning is None or warning in warnings[0]
