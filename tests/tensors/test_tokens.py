"""Special tokens around texts are detected by encoding: added before a text, never twice, never after it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, processors

from llmtrack.measure.prompts import prompt_ids
from llmtrack.quality.encoding import encode_text
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.task import GenerateTask
from llmtrack.tensors import tokens
from tests.quality import tokenizers

BOS, EOS = 0, 1  # of the byte-level tokenizer
A = tokenizers.byte_level().token_to_id("a")


def engine(template: str) -> tokenizers.TokenizingEngine:
    """Neither token has a role, so that only encoding reveals them."""
    return tokenizers.wrap(tokenizers.around(tokenizers.byte_level(), template))


@pytest.mark.parametrize(
    ("template", "before"),
    [
        ("$A", ()),
        ("<s> $A", (BOS,)),
        ("<s> $A </s>", (BOS,)),
        ("$A </s>", ()),
        ("<s> </s> $A", (BOS, EOS)),
        ("</s> $A </s>", (EOS,)),
    ],
)
def test_the_prefix_of_a_text_is_kept_and_its_suffix_dropped(template: str, before: tuple[int, ...]) -> None:
    tokenizing = engine(template)
    assert tokenizing.info.special_tokens.prefix == before
    assert tokenizing.encode("aa") == [*before, A, A]
    assert tokenizing.encode("aa", special_tokens=False) == [A, A]
    assert tokenizing.encode("") == [*before]
    assert prompt_ids(tokenizing, GenerateTask(prompts=("aa",), max_new_tokens=1)) == ((*before, A, A),)
    # Without a prefix, the first token of the text cannot be scored.
    for quality in (score_documents(tokenizing, ["aaa"]), score_rolling(tokenizing, ["aaa"])):
        assert (quality.tokens_scored, quality.bytes_scored) == ((3, 3) if before else (2, 2))


def test_cls_and_sep_are_bos_and_eos_by_other_names() -> None:
    tokenizing = tokenizers.wrap(tokenizers.word_piece(), unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    assert tokenizing.encode("one two") == [1, 3, 4]
    assert tokenizing.info.special_tokens.start_id == 1
    assert encode_text(tokenizing, "one two", "model").ids == [1, 3, 4]


def test_an_unknown_word_is_not_mistaken_for_the_prefix() -> None:
    tokenizer = tokenizers.word_piece()
    tokenizer.post_processor = processors.BertProcessing(("[UNK]", 0), ("[UNK]", 0))
    assert tokens.prefix(tokenizers.wrap(tokenizer).tokenizer) == (0,)


def test_the_prefix_of_a_slow_tokenizer_is_detected() -> None:
    assert tokens.prefix(tokenizers.SlowTokenizer()) == ()
    assert tokens.prefix(tokenizers.SlowTokenizer(adds_bos=True)) == (1,)
    assert tokens.encode(tokenizers.SlowTokenizer(adds_bos=True), "a", special_tokens=True) == [1, 3]


@pytest.mark.parametrize(("rule", "ids"), [("tokenizer", [BOS, A]), ("model", [BOS, A]), ("none", [BOS, A])])
@pytest.mark.parametrize("template", ["<s> $A", "<s> $A </s>"])
def test_a_text_that_starts_with_the_bos_gets_no_second_one(rule: str, ids: list[int], template: str) -> None:
    tokenizing = tokenizers.wrap(tokenizers.around(tokenizers.byte_level(), template), bos_token="<s>")
    encoded = encode_text(tokenizing, "<s>a", rule)
    assert (encoded.ids, encoded.text) == (ids, b"a")
    assert tokenizing.encode("<s>a") == [BOS, A]


def test_a_text_that_ends_with_the_eos_keeps_it() -> None:
    tokenizing = tokenizers.wrap(tokenizers.around(tokenizers.byte_level(), "<s> $A </s>"), eos_token="</s>")
    encoded = encode_text(tokenizing, "a</s>", "tokenizer")
    assert (encoded.ids, encoded.text) == ([BOS, A, EOS], b"a</s>")


def test_only_the_missing_part_of_the_prefix_is_added() -> None:
    assert engine("<s> </s> $A").encode("</s>a") == [BOS, EOS, A]
    assert engine("<s> </s> $A").encode("<s></s>a") == [BOS, EOS, A]


def test_a_truncated_prompt_keeps_its_prefix() -> None:
    task = GenerateTask(prompts=("a" * 9,), max_new_tokens=1, max_prompt_tokens=4, overlong_prompt="truncate")
    assert prompt_ids(engine("<s> </s> $A"), task) == ((BOS, EOS, A, A),)


@pytest.mark.parametrize(
    ("tokenizer", "roles", "unknown"),
    [
        (tokenizers.unigram(), {}, 0),
        (tokenizers.word_piece(), {}, 0),
        (tokenizers.word_piece(), {"unk_token": "[SEP]"}, 0),
        (tokenizers.byte_fallback(), {}, None),
        (tokenizers.byte_level(), {"unk_token": "</s>"}, EOS),  # never used
        (tokenizers.without_unknown(), {}, None),
    ],
)
def test_the_unknown_token_is_detected_by_encoding(
    tokenizer: Tokenizer, roles: dict[str, str], unknown: int | None
) -> None:
    assert tokenizers.wrap(tokenizer, **roles).info.special_tokens.unk_id == unknown
