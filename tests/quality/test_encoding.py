"""Bytes of the original text that scored tokens cover, for every kind of tokenizer, by hand."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from llmtrack.errors import ScenarioError
from llmtrack.quality import encoding
from llmtrack.quality.encoding import encode_text
from llmtrack.quality.perplexity import score_documents, score_rolling
from tests.quality import tokenizers

BITS = 1 / math.log(2)  # of a token scored with 1 nat


def test_chinese_lines_count_their_own_bytes_and_not_replacement_characters() -> None:
    # 17 characters of 3 bytes; the first byte of each line is given. Its other two bytes would be decoded as two U+FFFD.
    quality = score_documents(tokenizers.wrap(tokenizers.byte_level()), ["今天天气很好", "我们去公园", "孩子们在玩水"])
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (48, 48, 3)
    assert quality.bits_per_byte == pytest.approx(BITS)


@pytest.mark.parametrize("trim_offsets", [True, False])
@pytest.mark.parametrize(
    ("text", "keep", "rule", "covered"),
    [
        ("中文", 2, "none", b"\xb8"),
        ("中文", 5, "none", "中文".encode()[1:5]),
        ("a 中 b", None, "none", " 中 b".encode()),
        ("a 中 b", 3, "none", b" \xe4"),
        ("é b", None, "model", "é b".encode()),
        ("é b", 2, "model", b"\xc3"),
        ("  a  b", None, "none", b" a  b"),
    ],
)
def test_partial_characters_count_their_scored_bytes(
    text: str, keep: int | None, rule: str, covered: bytes, trim_offsets: bool
) -> None:
    engine = tokenizers.wrap(tokenizers.byte_level(trim_offsets=trim_offsets), bos_token="<s>")
    assert encode_text(engine, text, rule, keep).text == covered


def test_a_token_across_characters_counts_its_bytes() -> None:
    # 中 is e4 b8 ad and 文 e6 96 87: one token of the last byte of the one and the first of the other.
    symbols = dict(enumerate(tokenizers.byte_symbols()))
    engine = tokenizers.wrap(tokenizers.byte_level((symbols[0xAD], symbols[0xE6])))
    assert [encode_text(engine, "中文", "none", keep).bytes for keep in (1, 2, 3, 4, 5)] == [0, 1, 3, 4, 5]


@pytest.mark.slow(1)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.integers(1, 80))
def test_bytes_of_a_byte_level_tokenizer_are_its_tokens(text: str, keep: int) -> None:
    encoded = encode_text(BYTE_LEVEL, text, "model", keep)
    assert encoded.text == text.encode()[: keep - 1]
    assert encoded.lost == 0


BYTE_LEVEL = tokenizers.wrap(tokenizers.byte_level(trim_offsets=True), bos_token="<s>")
FALLBACK = tokenizers.wrap(tokenizers.byte_fallback(), bos_token="<s>", unk_token="<unk>")


@pytest.mark.parametrize(
    ("keep", "covered"),
    [
        (1, b""),
        (2, b""),
        (3, b"\xe4"),
        (4, b"\xe4\xb8"),
        (5, "中".encode()),
        (6, "中 ".encode()),
        (7, "中 a".encode()),
    ],
)
def test_byte_fallback_covers_its_bytes_and_no_added_space(keep: int, covered: bytes) -> None:
    # <s> ▁ e4 b8 ad ▁ a: the first ▁ is the tokenizer's own.
    assert encode_text(FALLBACK, "中 a", "model", keep).text == covered


@pytest.mark.slow(1)
@given(st.text(alphabet="ab é中\U0001f600", min_size=1, max_size=12), st.integers(2, 30))
def test_the_covered_text_is_a_prefix_of_the_text(text: str, keep: int) -> None:
    assert encode_text(FALLBACK, text, "model").text == text.encode()
    covered = encode_text(FALLBACK, text, "model", keep).text
    assert covered is not None
    assert text.encode().startswith(covered)


def test_unknown_words_keep_their_bytes_and_are_counted() -> None:
    # ▁one ▁ <unk> ▁two, the first given: " 中文" and " two" are 7 and 4 bytes, one of three tokens is unknown.
    engine = tokenizers.wrap(tokenizers.unigram(), unk_token="<unk>")
    quality = score_documents(engine, ["one 中文 two"])
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (3, 11, 2)
    assert quality.unknown_tokens_scored == 1
    assert quality.bits_per_byte == pytest.approx(3 / 11 * BITS)


def test_text_that_is_all_unknown_has_bytes() -> None:
    # [UNK] [UNK] [UNK], the first after [CLS]: 13 bytes in 3 words.
    quality = score_documents(tokenizers.wrap(tokenizers.word_piece(), unk_token="[UNK]"), ["xyz abc uvwxy"])
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (3, 13, 3)
    assert quality.unknown_tokens_scored == 3


def test_an_unknown_token_spelled_in_the_text_is_known() -> None:
    engine = tokenizers.wrap(tokenizers.byte_fallback(), bos_token="<s>", unk_token="<unk>")
    encoded = encode_text(engine, "a<unk>b", "model")
    assert (encoded.unknown, encoded.text) == (0, b"a<unk>b")


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("One Twofold", b"One Twofold"),
        ("\u00c9 one", "\u00c9 one".encode()),  # the accent is removed
        ("E\u0301 one", "E\u0301 one".encode()),  # a separate character here
        ("one   two", b"one   two"),
    ],
)
def test_a_normalizer_does_not_change_the_counted_bytes(text: str, covered: bytes) -> None:
    encoded = encode_text(tokenizers.wrap(tokenizers.word_piece(), unk_token="[UNK]"), text, "tokenizer")
    assert (encoded.text, encoded.lost, encoded.unknown) == (covered, 0, 0)


def test_a_character_normalized_to_several_counts_with_the_last() -> None:
    # U+FB01, "fi" in one character of 3 bytes, is read as f and i.
    tokenizer = tokenizers.without_unknown()
    tokenizer.normalizer = normalizers.NFKC()
    engine = tokenizers.wrap(tokenizer)
    assert [encode_text(engine, "x\ufb01x", "none", keep).bytes for keep in (2, 3, 4)] == [0, 3, 4]


def normalized(tokenizer: Tokenizer, normalizer: normalizers.Normalizer) -> tokenizers.TokenizingEngine:
    tokenizer.normalizer = normalizer
    return tokenizers.wrap(tokenizer, bos_token="<s>")


def test_a_character_normalized_to_words_counts_once() -> None:
    # U+FDFA is 3 bytes, and by NFKC 4 words of Arabic: the spaces between them have offsets after it.
    engine = normalized(tokenizers.byte_level(trim_offsets=True), normalizers.NFKC())
    assert len(encode_text(engine, "\ufdfa", "model").ids) == 1 + 33
    assert encode_text(engine, "a\ufdfab", "model").text == "a\ufdfab".encode()
    assert encode_text(engine, "a\ufdfab", "model", keep=20).text == b"a"


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    "engine",
    [
        normalized(tokenizers.byte_level(trim_offsets=True), normalizers.NFKC()),
        normalized(tokenizers.byte_level(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
        normalized(tokenizers.byte_fallback(), normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])),
    ],
    ids=["NFKC", "accents", "Nmt"],
)
@given(text=st.text(alphabet="ab é\u0301中\u2460\ufb01\ufdfa\u0130\u200b\x01\n", min_size=1, max_size=10))
def test_covered_bytes_grow_with_each_token_up_to_all_but_the_lost(
    engine: tokenizers.TokenizingEngine, text: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "tokenize", cache(engine.tokenize))  # only the cut differs
        encoded = encode_text(engine, text, "model")
        prefixes = [encode_text(engine, text, "model", keep) for keep in range(1, len(encoded.ids) + 1)]
    sizes = [prefix.bytes or 0 for prefix in prefixes]
    assert sizes == sorted(sizes)
    assert all(prefix.lost >= 0 for prefix in prefixes)
    assert sizes[-1] + encoded.lost == len(text.encode())


def test_text_without_tokens_is_not_covered_and_counted_as_lost() -> None:
    # a [12] b [中] c: a is given, b and c are covered with the space before each.
    encoded = encode_text(tokenizers.wrap(tokenizers.without_unknown()), "a 12 b中 c", "none")
    assert (encoded.text, encoded.lost) == (b" b c", len(" 12中".encode()))


def test_special_tokens_in_the_text_are_part_of_it() -> None:
    tokenizer = tokenizers.byte_level()
    tokenizer.add_special_tokens(["<|im_start|>"])
    quality = score_documents(tokenizers.wrap(tokenizer), ["a<|im_start|>b"])
    assert (quality.tokens_scored, quality.bytes_scored) == (2, len("<|im_start|>b"))


def test_the_stream_counts_the_separator_and_cuts_at_a_byte() -> None:
    # "é\n\né" is 6 bytes; of the first 5 tokens with a BOS 4 are predicted.
    quality = score_rolling(BYTE_LEVEL, ["é", "é"], bos_rule="model", max_tokens=5)
    assert (quality.tokens_scored, quality.bytes_scored, quality.tokens_truncated) == (4, 4, 2)


# --- tokenizers without offsets

SLOW, SLOW_BOS = tokenizers.SlowTokenizer(), tokenizers.SlowTokenizer(adds_bos=True)


@pytest.mark.parametrize(
    ("tokenizer", "text", "rule", "keep", "covered"),
    [
        (SLOW, "ab cd", "none", None, b"b cd"),
        (SLOW, "ab cd", "none", 3, b"b "),
        (SLOW, "ab cd", "model", 3, b"ab"),
        (SLOW_BOS, "ab cd", "tokenizer", None, b"ab cd"),
        (SLOW_BOS, "ab cd", "tokenizer", 3, b"ab"),
        # The token of an unknown character has no text of its own, so only the complete text is known.
        (SLOW_BOS, "ab é", "tokenizer", None, "ab é".encode()),
        (SLOW_BOS, "ab é", "tokenizer", 3, None),
        (SLOW, "é ab", "none", None, None),
    ],
)
def test_without_offsets_the_covered_text_is_that_of_the_tokens_or_unknown(
    tokenizer: tokenizers.SlowTokenizer, text: str, rule: str, keep: int | None, covered: bytes | None
) -> None:
    assert encode_text(tokenizers.TokenizingEngine(tokenizer), text, rule, keep).text == covered


def test_metrics_of_an_unknown_text_are_missing() -> None:
    quality = score_documents(tokenizers.TokenizingEngine(SLOW), ["ab", "é ab"])
    assert (quality.tokens_scored, quality.unknown_tokens_scored) == (4, 0)
    assert (quality.bits_per_byte, quality.word_perplexity, quality.bytes_scored, quality.text_digest) == (None,) * 4
    assert "bits_per_byte" not in quality.figures


# --- digests


def digests(tokenizer: Tokenizer, text: str, **options: object) -> tuple[str, str | None]:
    quality = score_documents(tokenizers.wrap(tokenizer, bos_token="<s>"), [text], **options)  # type: ignore[arg-type]
    return quality.tokens_digest, quality.text_digest


def test_tokens_and_text_have_separate_digests() -> None:
    plain, merged = tokenizers.byte_level(), tokenizers.byte_level(("a", "b"))
    assert digests(plain, "xx yy") == digests(merged, "xx yy")  # no merge applies
    (tokens, text), (other_tokens, other_text) = (
        digests(tokenizer, "ab ab", bos_rule="model") for tokenizer in (plain, merged)
    )
    assert text == other_text
    assert tokens != other_tokens
    # Equal counts of tokens, other text: abab and aba, of which 2 tokens are predicted.
    assert digests(plain, "abab", max_length=3)[1] != digests(merged, "abaab", max_length=3)[1]


# --- memory


def test_a_text_too_large_to_tokenize_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "available_bytes", lambda: 2**30)
    with pytest.raises(
        ScenarioError, match=r"10,000,000 characters takes about 1\.4 GiB .* and 1\.0 GiB are free"
    ) as caught:
        encode_text(object(), "x" * 10_000_000, "tokenizer")  # type: ignore[arg-type]
    assert caught.value.kind == "out_of_memory"
