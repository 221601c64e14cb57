"""A text is scored from its beginning on while the rest is still read; what comes of it does not depend on that."""

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
def begun(monkeypatch):
    """Begin early on any device and with any text, and tell how often a text was read."""
    stream, encode = perplexity.stream_windows, perplexity.encode_text
    texts = []

    def encoded(engine, text, *args, **named):
        texts.append(text)
        return encode(engine, text, *args, **named)

    monkeypatch.setattr(windows, "SHORTEST", 1)
    monkeypatch.setattr(perplexity, "encode_text", encoded)
    monkeypatch.setattr(perplexity, "stream_windows", lambda *args, **unused: stream(*args, ahead=True))
    return texts


@pytest.mark.slow(1)
@pytest.mark.parametrize("asked", [
    {}, {"max_length": 17, "stride": 5}, {"batch_size": None}, {"max_tokens": 100}, {"max_tokens": 11},
    {"bos_rule": "none", "batch_size": 1}, {"max_length": 64}, {"padding_side": "left"},
])  # fmt: skip
def test_the_result_is_equal_to_the_last_digit(request, asked):
    engine = small("llama")
    asked = {"max_length": 16, "batch_size": 3, **asked}
    expected = score_rolling(engine, TEXTS, **asked)
    texts = request.getfixturevalue("begun")
    told = []
    assert score_rolling(engine, TEXTS, **asked, on_batch=told.append) == expected
    assert [len(text) for text in texts] == [len("\n\n".join(TEXTS)) // 4, len("\n\n".join(TEXTS))]
    assert tuple(each.loss for each in told) == expected.batch_losses
    assert told[-1].number == told[-1].of == len(told)


@pytest.mark.slow(1)
def test_what_a_wrong_beginning_said_is_forgotten(begun, monkeypatch):
    engine = small("llama")
    told = []
    once = perplexity.encode_text

    def other(engine, text, *args, **named):
        found = once(engine, text, *args, **named)
        return found if len(begun) > 1 else Encoded(found.ids[::-1], found.given, None, 0)

    expected = score_rolling(engine, TEXTS, max_length=16)
    begun.clear()
    monkeypatch.setattr(perplexity, "encode_text", other)
    assert score_rolling(engine, TEXTS, max_length=16, on_batch=told.append) == expected
    assert [each.number for each in told].count(1) == 2, "all of it was scored anew"


def test_the_first_windows_are_there_while_the_rest_is_read(monkeypatch):
    monkeypatch.setattr(windows, "SHORTEST", 8_000)
    reading = threading.Event()

    def encode(text):
        if len(text) == windows.SHORTEST:
            assert reading.wait(HANG_S)
        return Encoded(list(text.encode()), 1, text.encode(), 0)

    text = "ab" * (windows.SHORTEST // 2)
    with stream_windows(text, encode, plan, ahead=True) as stream:
        rows = stream.rows()
        first = [next(rows) for _ in range(100)]
        assert stream.expected == windows.SHORTEST // 10
        reading.set()
        assert [window for _, window in [*first, *rows]] == list(stream.windows)


@pytest.mark.parametrize(("text", "asked"), [("ab" * 100, True), ("ab" * windows.SHORTEST, False)])
def test_a_short_text_is_read_once_and_on_a_cpu_any(text, asked):
    read = []
    with stream_windows(text, lambda each: read.append(each) or Encoded([1, 2], 1, None, 0), plan, ahead=asked):
        assert read == [text]


@pytest.mark.parametrize("early", [False, True])
def test_a_text_without_a_token_to_predict_says_so(request, early):
    if early:
        request.getfixturevalue("begun")
    with pytest.raises(ScenarioError, match="no token to predict"):
        score_rolling(scripted(), ["x"], bos_rule="none")
