"""Scoring starts with the beginning of a text while the rest is being tokenized; the result is the same."""

from __future__ import annotations

import threading

import pytest

from llmtrack.errors import ScenarioError
from llmtrack.quality import perplexity, windows
from llmtrack.quality.encoding import Encoded
from llmtrack.quality.perplexity import score_rolling
from llmtrack.quality.windows import plan_windows, stream_windows
from tests.conftest import HANG_S
from tests.engines.models import small
from tests.quality.engines import scripted

TEXTS = ("The harbour wakes before the town does.", "Boats come in with the tide. " * 30, "100 °C", "x" * 40)


def plan(tokens, given):
    return plan_windows(tokens, 10, 10, given)


@pytest.fixture
def tokenized_early(monkeypatch):
    """Start early on any device with any text; return the tokenized texts."""
    stream, encode = perplexity.stream_windows, perplexity.encode_text
    texts = []

    def encoded(engine, text, *args, **named):
        texts.append(text)
        return encode(engine, text, *args, **named)

    monkeypatch.setattr(windows, "SHORTEST", 1)
    monkeypatch.setattr(perplexity, "encode_text", encoded)
    monkeypatch.setattr(perplexity, "stream_windows", lambda *args, **unused: stream(*args, early=True))
    return texts


@pytest.mark.slow(1)
@pytest.mark.parametrize("options", [
    {}, {"max_length": 17, "stride": 5}, {"batch_size": None}, {"max_tokens": 100}, {"max_tokens": 11},
    {"bos_rule": "none", "batch_size": 1}, {"max_length": 64}, {"padding_side": "left"},
])  # fmt: skip
def test_the_result_is_equal_to_the_last_digit(request, options):
    engine = small("llama")
    options = {"max_length": 16, "batch_size": 3, **options}
    expected = score_rolling(engine, TEXTS, **options)
    texts = request.getfixturevalue("tokenized_early")
    batches = []
    assert score_rolling(engine, TEXTS, **options, on_batch=batches.append) == expected
    assert [len(text) for text in texts] == [len("\n\n".join(TEXTS)) // 4, len("\n\n".join(TEXTS))]
    assert tuple(batch.loss for batch in batches) == expected.batch_losses
    assert batches[-1].number == batches[-1].of == len(batches)


@pytest.mark.slow(1)
def test_scores_of_a_wrong_guess_are_discarded(tokenized_early, monkeypatch):
    engine = small("llama")
    batches = []
    encode_text = perplexity.encode_text

    def wrong_at_first(engine, text, *args, **named):
        encoded = encode_text(engine, text, *args, **named)
        return encoded if len(tokenized_early) > 1 else Encoded(encoded.ids[::-1], encoded.given, None, 0)

    expected = score_rolling(engine, TEXTS, max_length=16)
    tokenized_early.clear()
    monkeypatch.setattr(perplexity, "encode_text", wrong_at_first)
    assert score_rolling(engine, TEXTS, max_length=16, on_batch=batches.append) == expected
    assert [batch.number for batch in batches].count(1) == 2, "the text was scored again from its beginning"


def test_the_first_windows_are_available_while_the_rest_is_tokenized(monkeypatch):
    monkeypatch.setattr(windows, "SHORTEST", 8_000)
    release = threading.Event()

    def encode(text):
        if len(text) == windows.SHORTEST:
            assert release.wait(HANG_S)
        return Encoded(list(text.encode()), 1, text.encode(), 0)

    text = "ab" * (windows.SHORTEST // 2)
    with stream_windows(text, encode, plan, early=True) as stream:
        rows = stream.rows()
        first = [next(rows) for _ in range(100)]
        assert stream.expected == windows.SHORTEST // 10
        release.set()
        assert [window for _, window in [*first, *rows]] == list(stream.windows)


@pytest.mark.parametrize(("text", "early"), [("ab" * 100, True), ("ab" * windows.SHORTEST, False)])
def test_a_short_text_and_any_on_a_cpu_is_tokenized_once(text, early):
    texts = []
    with stream_windows(text, lambda text: texts.append(text) or Encoded([1, 2], 1, None, 0), plan, early=early):
        assert texts == [text]


@pytest.mark.parametrize("early", [False, True])
def test_a_text_without_a_token_to_predict_is_refused(request, early):
    if early:
        request.getfixturevalue("tokenized_early")
    with pytest.raises(ScenarioError, match="no token to predict"):
        score_rolling(scripted(), ["x"], bos_rule="none")
