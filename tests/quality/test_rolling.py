"""Perplexity of a stream: against a plain reference, by hand, and independence of batching."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.engine import SpecialTokens
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.engines.torch import pytorch
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.quality.perplexity import Batch, score_documents, score_rolling
from llmtrack.spec.scenario import Variant
from llmtrack.tensors import likelihood as scoring
from tests.engines.models import small
from tests.quality.engines import BOS, LN2, scripted, two_letters

TEXTS = (
    "The harbour wakes before the town does.",
    "Boats come in with the tide, their holds full of herring é and 100 °C.",
    "x",
    "and the market fills with voices that know the price of everything.",
)
STREAM = "\n\n".join(TEXTS)
# Enough for many short windows.
SHORT_TEXTS = ("The harbour", "é and 100 °C", "x", "wakes.")


def reference(engine, ids: list[int], max_length: int, stride: int) -> float:
    """Compute the mean loss token by token; the window of a token follows from its number alone."""
    nats = []
    # Later tokens do not change a prediction, so a window is read once.
    read: dict[tuple[int, int], torch.Tensor] = {}
    for token in range(1, len(ids)):
        if token <= max_length:
            window_end = min(len(ids), max_length + 1)
        else:
            steps = math.ceil((token - max_length) / stride)
            window_end = min(len(ids), max_length + 1 + steps * stride)
        begin = max(0, window_end - 1 - max_length)
        if (begin, window_end) not in read:
            with torch.no_grad():
                read[begin, window_end] = engine.model(torch.tensor([ids[begin:window_end]])).logits[0]
        logits = read[begin, window_end][token - begin - 1]
        nats.append(-float(logits.double().log_softmax(dim=-1)[ids[token]]))
    return math.fsum(nats) / len(nats)


@pytest.mark.slow(3)
@pytest.mark.parametrize("rule", ["model", "none"])
@pytest.mark.parametrize(
    ("max_length", "stride"), [(16, 16), (16, 5), (8, 1), (7, 6), (2, 2), (3, 1), (100, 40), (128, 0)]
)
def test_equals_a_plain_reference(tiny, max_length, stride, rule):
    texts = TEXTS if max_length > 16 else SHORT_TEXTS
    ids = list("\n\n".join(texts).encode())
    expected = reference(tiny, [BOS, *ids] if rule == "model" else ids, max_length, stride or max_length)
    for batch_size in (1, 3):
        quality = score_rolling(tiny, texts, max_length=max_length, stride=stride, bos_rule=rule, batch_size=batch_size)
        assert quality.loss == pytest.approx(expected, rel=1e-6)
        assert quality.tokens_scored == quality.bytes_scored == len(ids) - (rule == "none")


@pytest.mark.slow(1)
@settings(max_examples=20, deadline=None)
@given(
    text=st.text(alphabet="abcdeé ", min_size=2, max_size=60),
    max_length=st.integers(2, 24),
    data=st.data(),
    rule=st.sampled_from(["model", "none", "tokenizer"]),
)
def test_batching_and_padding_change_nothing(tiny, text, max_length, data, rule):
    stride = data.draw(st.integers(1, max_length))
    batch_size, side = data.draw(st.integers(1, 9)), data.draw(st.sampled_from(["left", "right"]))
    options = {"max_length": max_length, "stride": stride, "bos_rule": rule}
    plain = score_rolling(tiny, [text], batch_size=1, **options)
    other = score_rolling(tiny, [text], batch_size=batch_size, padding_side=side, **options)
    for name in ("loss", "bits_per_byte"):
        assert getattr(other, name) == pytest.approx(getattr(plain, name), rel=1e-6)
    for name in ("tokens_scored", "bytes_scored", "words_scored", "windows_scored"):
        assert getattr(other, name) == getattr(plain, name)


@pytest.mark.slow(1)
@settings(max_examples=30)
@given(length=st.integers(2, 60), max_length=st.integers(2, 20), batch_size=st.integers(1, 9), data=st.data())
def test_every_token_is_scored_once(length, max_length, batch_size, data):
    stride = data.draw(st.integers(1, max_length))
    quality = score_rolling(scripted(), ["x" * length], max_length=max_length, stride=stride, batch_size=batch_size)
    assert quality.tokens_scored == length - 1
    assert quality.loss == pytest.approx(1.0)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_by_hand(stride, side):
    """a (given) b a b a: 1, 3, 1 and 3 bits with any windows, since only one token of context matters."""
    quality = score_rolling(two_letters(), ["ababa"], max_length=3, stride=stride, padding_side=side)
    assert quality.loss == pytest.approx(2 * LN2)
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (4, 4, 1)
    assert quality.bits_per_byte == pytest.approx(2)
    assert quality.word_perplexity == pytest.approx(2**8)
    assert quality.windows_scored == {1: 2, 2: 2, 3: 2}[stride]
    assert (quality.documents_scored, quality.documents_skipped) == (None, None)


def test_texts_are_joined_by_two_line_feeds(tiny):
    joined = score_rolling(tiny, [STREAM], max_length=32)
    assert score_rolling(tiny, TEXTS, max_length=32) == joined


@pytest.mark.parametrize(
    ("rule", "tokens", "text"), [("model", 5, "ab cd"), ("none", 4, "b cd"), ("tokenizer", 4, "b cd")]
)
def test_the_bos_rule_decides_whether_the_first_token_counts(rule, tokens, text):
    quality = score_rolling(scripted(), ["ab cd"], bos_rule=rule)
    assert (quality.tokens_scored, quality.bytes_scored) == (tokens, len(text))
    assert quality.words_scored == 2


def test_with_a_bos_all_bytes_of_the_stream_count(tiny):
    quality = score_rolling(tiny, TEXTS, bos_rule="model", max_length=32)
    assert quality.bytes_scored == len(STREAM.encode())
    assert quality.words_scored == len(STREAM.split())


def test_a_bos_added_by_the_tokenizer_is_not_repeated():
    class AddsBos(ScriptedEngine):
        def encode(self, text, special_tokens=True):
            return [0] * special_tokens + super().encode(text)

    engine = AddsBos(FakeClock(), Script(1.0, 1.0))
    scored = {
        rule: score_rolling(engine, ["abc"], bos_rule=rule).tokens_scored for rule in ("tokenizer", "model", "none")
    }
    assert scored == {"tokenizer": 3, "model": 3, "none": 2}


def test_bos_rule_model_without_a_start_token_is_refused():
    with pytest.raises(UsageError, match="no start token; use bos_rule=none"):
        score_rolling(scripted(special_tokens=SpecialTokens({})), ["abc"], bos_rule="model")


def test_an_unknown_bos_rule_is_refused():
    with pytest.raises(UsageError, match="no bos_rule 'maybe': use one of tokenizer, model, none"):
        score_rolling(scripted(), ["abc"], bos_rule="maybe")


@pytest.mark.parametrize("rule", ["model", "none"])
def test_a_single_token_is_scored_only_with_a_bos(rule):
    if rule == "model":
        assert score_rolling(scripted(), ["a"], bos_rule=rule).tokens_scored == 1
        return
    with pytest.raises(ScenarioError, match=r"no token to predict: use a longer one") as caught:
        score_rolling(scripted(), ["a"], bos_rule=rule)
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize("texts", [[], [""]])
@pytest.mark.parametrize("rule", ["model", "none"])
def test_an_empty_stream_is_refused(texts, rule):
    with pytest.raises(ScenarioError, match="no token to predict"):
        score_rolling(scripted(), texts, bos_rule=rule)


def test_max_tokens_limits_the_stream_and_is_counted():
    quality = score_rolling(scripted(), ["ab cd ef"], max_tokens=5, max_length=4)
    assert (quality.tokens_scored, quality.tokens_truncated) == (4, 3)
    assert (quality.bytes_scored, quality.words_scored) == (4, 2)
    with_bos = score_rolling(scripted(), ["ab cd ef"], max_tokens=5, bos_rule="model")
    assert (with_bos.tokens_scored, with_bos.tokens_truncated, with_bos.bytes_scored) == (4, 4, 4)


@pytest.mark.parametrize("stride", [5, -1])
def test_an_impossible_stride_is_refused(stride):
    with pytest.raises(UsageError, match=f"stride {stride} is not possible"):
        score_rolling(scripted(), ["abc"], max_length=4, stride=stride)


@pytest.mark.parametrize("max_length", [1, 65])
def test_max_length_must_fit_the_context(max_length):
    with pytest.raises(UsageError, match=f"max_length {max_length} is not possible: use 2 to 64"):
        score_rolling(scripted(context_length=64), ["abc"], max_length=max_length)


def test_the_whole_context_can_be_read():
    """Learned positions end at the context's length: a window's last target must not be read."""
    engine = pytorch.load(Variant("synthetic:tiny-gpt2", device="cpu"))
    context = engine.info.context_length
    quality = score_rolling(engine, ["x" * (context + 20)], max_length=context, batch_size=2)
    assert quality.tokens_scored == context + 19


def test_each_batch_is_reported():
    batches: list[Batch] = []
    score_rolling(scripted(), ["x" * 12], max_length=4, stride=2, batch_size=2, on_batch=batches.append)
    # 4 and 2; 2 and 2; 1.
    assert [batch.tokens for batch in batches] == [6, 4, 1]
    assert [batch.of for batch in batches] == [3, 3, 3]


@pytest.mark.slow(1)
def test_the_standard_error_does_not_depend_on_batches(tiny):
    options = {"max_length": 16, "stride": 4}
    errors = [score_rolling(tiny, TEXTS, batch_size=size, **options).loss_stderr for size in (1, 3, 8)]
    assert errors[0] > 0
    assert errors == pytest.approx([errors[0]] * 3, rel=1e-4)
    assert score_rolling(tiny, ["short"], max_length=16).loss_stderr is None


def test_each_window_reads_max_length_and_scores_the_stride():
    windows = []

    class Recording(ScriptedEngine):
        def score(self, input_ids, attention_mask, scored=None):
            windows.append((input_ids.shape[1], None if scored is None else scored.sum().item()))
            return super().score(input_ids, attention_mask, scored)

    engine = Recording(FakeClock(), Script(1.0, 1.0))
    score_rolling(engine, ["x" * 60], max_length=20, stride=5, batch_size=1)
    # The last token is only a target, so 21 are read; all of the first window counts, the last has 4 new tokens.
    assert windows == [(21, None)] + [(21, 5)] * 7 + [(21, 4)]


def test_documents_and_rolling_differ(tiny):
    assert score_documents(tiny, TEXTS, max_length=32).loss != score_rolling(tiny, TEXTS, max_length=32).loss


@pytest.mark.slow(1)
@pytest.mark.parametrize("stride", [64, 8])
def test_logits_are_computed_in_chunks(stride, monkeypatch):
    """Eight windows of 64 tokens over a vocabulary of 50,000 would be 102 MB of logits at once."""
    engine = small("llama", vocab_size=50_000)
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 2**20)
    score_rolling(engine, ["ab"], max_length=2)  # the short pass that inspects the head
    sizes, tokens = [], []

    def record(module, inputs, output):
        sizes.append(output.numel() * output.element_size())
        tokens.append(output.shape[0])

    hook = engine.model.lm_head.register_forward_hook(record)
    try:
        quality = score_rolling(engine, [STREAM * 3], max_length=64, stride=stride, batch_size=8)
    finally:
        hook.remove()
    assert max(sizes) <= 2**20
    # The head is not applied to tokens that are only context.
    assert sum(tokens) == quality.tokens_scored
