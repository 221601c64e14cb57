"""Which bytes of the original text the scored tokens cover, for every kind of tokenizer: all numbers by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers

from llmtrack.quality.encoding import encode_text
from llmtrack.quality.perplexity import score_documents, score_rolling
from tests.quality import tokenizers as made

BITS = 1 / math.log(2)  # of a token that is scored with 1 nat


def test_chinese_lines_count_their_own_bytes_and_not_replacement_characters() -> None:
    # 17 characters of 3 bytes; the first byte of each line is given. Decoded, the two bytes left of it are two U+FFFD.
    quality = score_documents(made.wrap(made.byte_level()), ["今天天气很好", "我们去公园", "孩子们在玩水"])
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
def test_half_characters_count_the_bytes_that_were_scored(
    text: str, keep: int | None, rule: str, covered: bytes, trim_offsets: bool
) -> None:
    engine = made.wrap(made.byte_level(trim_offsets=trim_offsets), bos_token="<s>")
    assert encode_text(engine, text, rule, keep).text == covered


def test_bytes_merged_across_characters_are_told_apart() -> None:
    # 中 is e4 b8 ad and 文 e6 96 87: one token of the last byte of the one and the first of the other.
    symbols = dict(enumerate(made.byte_symbols()))
    engine = made.wrap(made.byte_level((symbols[0xAD], symbols[0xE6])))
    assert [encode_text(engine, "中文", "none", keep).bytes for keep in (1, 2, 3, 4, 5)] == [0, 1, 3, 4, 5]


@pytest.mark.slow(1)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), st.integers(1, 80))
def test_bytes_of_a_byte_level_tokenizer_are_its_tokens(text: str, keep: int) -> None:
    encoded = encode_text(BYTE_LEVEL, text, "model", keep)
    assert encoded.text == text.encode()[: keep - 1]
    assert encoded.lost == 0


BYTE_LEVEL = made.wrap(made.byte_level(trim_offsets=True), bos_token="<s>")
FALLBACK = made.wrap(made.byte_fallback(), bos_token="<s>", unk_token="<unk>")


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
def test_byte_fallback_covers_its_bytes_and_a_space_that_is_not_there_none(keep: int, covered: bytes) -> None:
    # <s> ▁ e4 b8 ad ▁ a: the first ▁ is the tokenizer's own.
    assert encode_text(FALLBACK, "中 a", "model", keep).text == covered


@pytest.mark.slow(1)
@given(st.text(alphabet="ab é中\U0001f600", min_size=1, max_size=12), st.integers(2, 30))
def test_what_is_cut_and_what_is_kept_make_the_text(text: str, keep: int) -> None:
    whole = encode_text(FALLBACK, text, "model")
    assert whole.text == text.encode()
    kept = encode_text(FALLBACK, text, "model", keep).text
    assert kept is not None
    assert text.encode().startswith(kept)


def test_unknown_words_keep_their_bytes_and_are_counted() -> None:
    # ▁one ▁ <unk> ▁two, the first given: " 中文" and " two" are 7 and 4 bytes, one of three tokens is unknown.
    engine = made.wrap(made.unigram(), unk_token="<unk>")
    quality = score_documents(engine, ["one 中文 two"])
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (3, 11, 2)
    assert quality.unknown_tokens_scored == 1
    assert quality.bits_per_byte == pytest.approx(3 / 11 * BITS)


def test_text_that_is_all_unknown_has_bytes() -> None:
    # [UNK] [UNK] [UNK], the first after [CLS]: 13 bytes in 3 words.
    quality = score_documents(made.wrap(made.word_piece(), unk_token="[UNK]"), ["xyz abc uvwxy"])
    assert (quality.tokens_scored, quality.bytes_scored, quality.words_scored) == (3, 13, 3)
    assert quality.unknown_tokens_scored == 3


def test_an_unknown_token_that_the_text_spells_is_known() -> None:
    engine = made.wrap(made.byte_fallback(), bos_token="<s>", unk_token="<unk>")
    encoded = encode_text(engine, "a<unk>b", "model")
    assert (encoded.unknown, encoded.text) == (0, b"a<unk>b")


@pytest.mark.parametrize(
    ("text", "covered"),
    [
        ("One Twofold", b"One Twofold"),
        ("\u00c9 one", "\u00c9 one".encode()),  # the accent is taken away
        ("E\u0301 one", "E\u0301 one".encode()),  # which is a character of its own here
        ("one   two", b"one   two"),
    ],
)
def test_a_normalizer_changes_what_is_read_and_not_what_is_counted(text: str, covered: bytes) -> None:
    encoded = encode_text(made.wrap(made.word_piece(), unk_token="[UNK]"), text, "tokenizer")
    assert (encoded.text, encoded.lost, encoded.unknown) == (covered, 0, 0)


def test_a_character_that_becomes_several_counts_with_the_last_of_them() -> None:
    # U+FB01, "fi" in one character of 3 bytes, is read as f and i.
    tokenizer = made.without_unknown()
    tokenizer.normalizer = normalizers.NFKC()
    engine = made.wrap(tokenizer)
    assert [encode_text(engine, "x\ufb01x", "none", keep).bytes for keep in (2, 3, 4)] == [0, 3, 4]


def normalized(tokenizer: Tokenizer, normalizer: normalizers.Normalizer) -> made.TokenizingEngine:
    tokenizer.normalizer = normalizer
    return made.wrap(tokenizer, bos_token="<s>")


def test_a_character_that_becomes_words_counts_once() -> None:
    # U+FDFA is 3 bytes, and by NFKC 4 words of Arabic: the spaces between them are said to be behind it.
    engine = normalized(made.byte_level(trim_offsets=True), normalizers.NFKC())
    assert len(encode_text(engine, "\ufdfa", "model").ids) == 1 + 33
    assert encode_text(engine, "a\ufdfab", "model").text == "a\ufdfab".encode()
    assert encode_text(engine, "a\ufdfab", "model", keep=20).text == b"a"


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    "engine",
    [
        normalized(made.byte_level(trim_offsets=True), normalizers.NFKC()),
        normalized(made.byte_level(), normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
        normalized(made.byte_fallback(), normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])),
    ],
    ids=["NFKC", "accents", "Nmt"],
)
@given(text=st.text(alphabet="ab é\u0301中\u2460\ufb01\ufdfa\u0130\u200b\x01\n", min_size=1, max_size=10))
def test_what_is_covered_grows_with_each_token_up_to_all_that_is_not_lost(
    engine: made.TokenizingEngine, text: str
) -> None:
    whole = encode_text(engine, text, "model")
    kept = [encode_text(engine, text, "model", keep) for keep in range(1, len(whole.ids) + 1)]
    sizes = [each.bytes or 0 for each in kept]
    assert sizes == sorted(sizes)
    assert all(each.lost >= 0 for each in kept)
    assert sizes[-1] + whole.lost == len(text.encode())


def test_what_no_token_stands_for_is_not_covered_and_is_told() -> None:
    # a [12] b [中] c: a is given, b and c are covered with the space before each.
    encoded = encode_text(made.wrap(made.without_unknown()), "a 12 b中 c", "none")
    assert (encoded.text, encoded.lost) == (b" b c", len(" 12中".encode()))


def test_specials_written_in_the_text_are_part_of_it() -> None:
    tokenizer = made.byte_level()
    tokenizer.add_special_tokens(["<|im_start|>"])
    quality = score_documents(made.wrap(tokenizer), ["a<|im_start|>b"])
    assert (quality.tokens_scored, quality.bytes_scored) == (2, len("<|im_start|>b"))


def test_the_stream_counts_the_separator_and_cuts_at_a_byte() -> None:
    # "é\n\né" is 6 bytes; of the first 5 tokens with a BOS 4 are predicted.
    quality = score_rolling(BYTE_LEVEL, ["é", "é"], bos_rule="model", max_tokens=5)
    assert (quality.tokens_scored, quality.bytes_scored, quality.tokens_truncated) == (4, 4, 2)


# --- tokenizers that tell no offsets

SLOW, SLOW_BOS = made.SlowTokenizer(), made.SlowTokenizer(adds_bos=True)


@pytest.mark.parametrize(
    ("tokenizer", "text", "rule", "keep", "covered"),
    [
        (SLOW, "ab cd", "none", None, b"b cd"),
        (SLOW, "ab cd", "none", 3, b"b "),
        (SLOW, "ab cd", "model", 3, b"ab"),
        (SLOW_BOS, "ab cd", "tokenizer", None, b"ab cd"),
        (SLOW_BOS, "ab cd", "tokenizer", 3, b"ab"),
        # An unknown character is not spelled: known is only what all of the text is.
        (SLOW_BOS, "ab é", "tokenizer", None, "ab é".encode()),
        (SLOW_BOS, "ab é", "tokenizer", 3, None),
        (SLOW, "é ab", "none", None, None),
    ],
)
def test_without_offsets_the_spelling_of_the_tokens_tells_the_text_or_nothing_does(
    tokenizer: made.SlowTokenizer, text: str, rule: str, keep: int | None, covered: bytes | None
) -> None:
    assert encode_text(made.TokenizingEngine(tokenizer), text, rule, keep).text == covered


def test_where_the_text_is_not_known_no_figure_of_it_is_made_up() -> None:
    quality = score_documents(made.TokenizingEngine(SLOW), ["ab", "é ab"])
    assert (quality.tokens_scored, quality.unknown_tokens_scored) == (4, 0)
    assert (quality.bits_per_byte, quality.word_perplexity, quality.bytes_scored, quality.text_digest) == (None,) * 4
    assert "bits_per_byte" not in quality.figures


# --- digests


def digests(tokenizer: Tokenizer, text: str, **options: object) -> tuple[str, str | None]:
    quality = score_documents(made.wrap(tokenizer, bos_token="<s>"), [text], **options)  # type: ignore[arg-type]
    return quality.tokens_digest, quality.text_digest


def test_digests_tell_the_tokens_and_the_text_apart() -> None:
    plain, merged = made.byte_level(), made.byte_level(("a", "b"))
    assert digests(plain, "xx yy") == digests(merged, "xx yy")  # they do the same here
    one, other = digests(plain, "ab ab", bos_rule="model"), digests(merged, "ab ab", bos_rule="model")
    assert one[1] == other[1]
    assert one[0] != other[0]
    # Equal counts of tokens, other text: abab and aba, of which 2 tokens are predicted.
    cut = digests(plain, "abab", max_length=3), digests(merged, "abaab", max_length=3)
    assert cut[0][1] != cut[1][1]
