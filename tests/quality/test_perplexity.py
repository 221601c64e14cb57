"""Perplexity of documents: by hand, and independence of batching."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError, UsageError
from llmtrack.quality import perplexity
from llmtrack.quality.metrics import compute_perplexity
from llmtrack.quality.perplexity import Batch, score_documents, score_rolling
from tests.engines.models import bigram_engine
from tests.quality.engines import LN2, B, scripted, two_letters


def test_by_hand():
    # abc predicts b and c, de predicts e: 3 tokens of 1 nat, whose text has 3 bytes.
    quality = score_documents(scripted(), ["abc", "de", "f"], batch_size=2)
    assert quality.loss == pytest.approx(1.0)
    assert quality.perplexity == pytest.approx(math.e)
    assert quality.bits_per_byte == pytest.approx(1 / math.log(2))
    assert (quality.tokens_scored, quality.bytes_scored) == (3, 3)
    assert (quality.documents_scored, quality.documents_skipped) == (2, 1)
    assert quality.tokens_truncated == 0
    assert quality.batch_losses == (1.0,)


@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_each_document_has_its_own_metrics_in_the_order_of_the_corpus(batch_size):
    """aab: 2 x 1 bit; ba: 3 bits; aaaaaa: 5 x 1 bit; a document of one token predicts nothing, but keeps its number."""
    quality = score_documents(two_letters(), ["aab", "b", "ba", "aaaaaa"], batch_size=batch_size)
    assert [item.name for item in quality.items] == ["1: aab", "3: ba", "4: aaaaaa"]
    assert [item.values["perplexity"] for item in quality.items] == pytest.approx([2.0, 8.0, 2.0])
    assert [item.values["tokens_scored"] for item in quality.items] == [2, 1, 5]
    total = sum(item.values["loss"] * item.values["tokens_scored"] for item in quality.items)
    assert total / quality.tokens_scored == pytest.approx(quality.loss)


def test_the_number_and_the_names_of_items_are_bounded(monkeypatch):
    monkeypatch.setattr(perplexity, "MOST_ITEMS", 2)
    quality = score_documents(two_letters(), ["a" * 1000, "ab", "ba"])
    (first, second) = quality.items
    assert (len(first.name), first.name[:7], second.name) == (len("1: ") + 60, "1: aaaa", "2: ab")
    assert first.values["tokens_scored"] == 511
    assert score_rolling(scripted(), ["ab", "ba"]).items == (), "windows are not documents"


def test_bits_are_per_byte_and_not_per_token():
    # b and c are one byte each, é two: 4 bytes of 3 tokens.
    quality = score_documents(scripted(), ["abcé"])
    assert (quality.tokens_scored, quality.bytes_scored) == (3, 4)
    assert quality.bits_per_byte == pytest.approx(0.75 / math.log(2))


@pytest.mark.parametrize("batch_size", [1, 2, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_are_weighted_by_their_tokens(batch_size, side):
    """aab: 2 x 1 bit; ba: 3 bits; aaaaaa: 5 x 1 bit. 10 bits over 8 tokens, not the mean of 1, 3 and 1."""
    quality = score_documents(two_letters(), ["aab", "ba", "aaaaaa"], batch_size=batch_size, padding_side=side)
    assert quality.loss == pytest.approx(10 / 8 * LN2)
    assert quality.perplexity == pytest.approx(2 ** (10 / 8))
    assert quality.bits_per_byte == pytest.approx(10 / 8)
    # Longest first: aaaaaa, aab, ba.
    expected = {1: (1, 1, 3), 2: (1, 3), 3: (10 / 8,)}[batch_size]
    assert quality.batch_losses == pytest.approx([bits * LN2 for bits in expected])


@pytest.mark.parametrize("batch_size", [1, 2, 5])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_uniform_model_has_the_perplexity_of_its_vocabulary_size(batch_size, side):
    engine = bigram_engine(torch.zeros(300, 300))
    texts = ["ab", "The harbour wakes", "x", "before the town does", "and more"]
    quality = score_documents(engine, texts, batch_size=batch_size, padding_side=side)
    assert quality.perplexity == pytest.approx(300)


DOCUMENTS = st.lists(st.text(alphabet="abcdeé ", min_size=1, max_size=12), min_size=1, max_size=6).filter(
    lambda texts: any(len(text.encode()) > 1 for text in texts)
)


@pytest.mark.slow(1)
@settings(max_examples=15, deadline=None)
@given(texts=DOCUMENTS, batch_size=st.integers(1, 6), side=st.sampled_from(["left", "right"]), data=st.data())
def test_batching_padding_and_order_change_nothing(tiny, texts, batch_size, side, data):
    plain = score_documents(tiny, texts, batch_size=1)
    other = score_documents(tiny, data.draw(st.permutations(texts)), batch_size=batch_size, padding_side=side)
    assert other.loss == pytest.approx(plain.loss, rel=1e-6)
    assert other.bits_per_byte == pytest.approx(plain.bits_per_byte, rel=1e-6)
    for name in ("tokens_scored", "bytes_scored", "words_scored", "documents_scored", "documents_skipped"):
        assert getattr(other, name) == getattr(plain, name)


@pytest.mark.slow(1)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    max_length=st.integers(2, 20),
    batch_size=st.integers(1, 9),
)
def test_every_token_is_scored_cut_or_first(lengths, max_length, batch_size):
    texts = ["x" * length for length in lengths]
    if max(lengths) < 2:
        with pytest.raises(ScenarioError):
            score_documents(scripted(), texts)
        return
    quality = score_documents(scripted(), texts, max_length=max_length, batch_size=batch_size)
    assert quality.tokens_truncated == sum(max(0, length - max_length) for length in lengths)
    assert quality.documents_skipped == lengths.count(1)
    assert quality.tokens_scored + quality.tokens_truncated + len(lengths) == sum(lengths)
    assert quality.bytes_scored == quality.tokens_scored
    assert quality.loss == pytest.approx(1.0)


def test_each_batch_is_reported():
    batches: list[Batch] = []
    score_documents(scripted(), ["abcd", "ab", "abc"], batch_size=2, on_batch=batches.append)
    assert [str(batch) for batch in batches] == [
        "batch 1/2 - loss 1.0000, tokens 5",
        "batch 2/2 - loss 1.0000, tokens 1",
    ]


@pytest.mark.parametrize("texts", [[], [""], ["a"], ["a", "", "b"]])
def test_nothing_to_predict(texts):
    with pytest.raises(ScenarioError, match=r"no document has two tokens.*use longer texts") as caught:
        score_documents(scripted(), texts)
    assert caught.value.kind == "unsupported"


def test_an_empty_document_is_skipped():
    quality = score_documents(scripted(), ["", "ab"])
    assert (quality.tokens_scored, quality.documents_scored, quality.documents_skipped) == (1, 1, 1)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_non_finite_loss_is_refused_with_a_remedy(value):
    table = torch.zeros(128, 128)
    table[B] = value
    with pytest.raises(ScenarioError, match=r"batch 2/2 is not finite in float32: look for damaged weights") as caught:
        score_documents(bigram_engine(table), ["aa", "ba"], batch_size=1)
    assert caught.value.kind == "non_finite"


def test_an_impossible_token_is_an_infinite_loss_and_refused():
    with pytest.raises(ScenarioError, match="not finite"):
        score_documents(two_letters(), ["ac"])


@pytest.mark.parametrize("max_length", [-1, 0, 1, 65])
def test_max_length_must_fit_the_context(max_length):
    with pytest.raises(UsageError, match=f"max_length {max_length} is not possible: use 2 to 64"):
        score_documents(scripted(context_length=64), ["abc"], max_length=max_length)


def test_max_length_may_fill_the_context():
    assert score_documents(scripted(context_length=64), ["x" * 80], max_length=64).tokens_truncated == 16


def test_batch_size_must_be_positive():
    with pytest.raises(UsageError, match="batch_size 0"):
        score_documents(scripted(), ["abc"], batch_size=0)


@pytest.mark.parametrize(("loss", "expected"), [(0.0, 1.0), (math.log(300), 300.0), (1000.0, math.inf)])
def test_compute_perplexity(loss, expected):
    assert compute_perplexity(loss) == pytest.approx(expected)


def test_words_are_those_of_the_predicted_text():
    # "bc de" of "abc de", and "e" of "de": 6 nats over 3 words.
    quality = score_documents(scripted(), ["abc de", "de", "f"])
    assert (quality.tokens_scored, quality.words_scored) == (6, 3)
    assert quality.word_perplexity == pytest.approx(math.exp(2))


def test_without_words_the_word_perplexity_is_infinite():
    quality = score_documents(scripted(), ["a "])
    assert (quality.words_scored, quality.word_perplexity) == (0, math.inf)


@pytest.mark.parametrize(("rule", "tokens", "skipped"), [("tokenizer", 3, 1), ("none", 3, 1), ("model", 6, 0)])
def test_with_a_bos_the_first_token_of_each_document_counts(rule, tokens, skipped):
    quality = score_documents(scripted(), ["abc", "de", "f"], bos_rule=rule)
    assert (quality.tokens_scored, quality.bytes_scored) == (tokens, tokens)
    assert quality.documents_skipped == skipped


class Recording(ScriptedEngine):
    """Records the shape of each batch."""

    shapes: tuple[tuple[int, ...], ...] = ()

    def score(self, input_ids, attention_mask, scored=None):
        self.shapes += (tuple(input_ids.shape),)
        return super().score(input_ids, attention_mask, scored)


def test_documents_of_similar_length_share_a_batch_longest_first():
    engine = Recording(FakeClock(), Script(1.0, 1.0))
    score_documents(engine, ["x" * length for length in (2, 9, 3, 8)], batch_size=2)
    assert engine.shapes == ((2, 9), (2, 3))


def test_the_standard_error_resamples_documents():
    """Documents of 1 and 3 bits per token: a draw of two has 1, 2 or 3 bits with probability 1/4, 1/2 and 1/4."""
    quality = score_documents(two_letters(), ["aa", "ba"])
    assert quality.loss == pytest.approx(2 * LN2)
    assert quality.loss_stderr == pytest.approx(math.sqrt(0.5) * LN2, rel=0.05)
    assert score_documents(two_letters(), ["aa"]).loss_stderr is None


def test_the_standard_error_does_not_depend_on_batches():
    texts = ["aab", "ba", "aaaaaa", "abab"]
    errors = [score_documents(two_letters(), texts, batch_size=size).loss_stderr for size in (1, 2, 4)]
    assert errors == pytest.approx([errors[0]] * 3)
