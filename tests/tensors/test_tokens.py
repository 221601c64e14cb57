"""Special tokens around texts: detected by encoding, kept before a text, never twice, never after it."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, processors

from llmtrack.measure.prompts import prompt_ids
from llmtrack.quality.encoding import encode_text
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.task import GenerateTask
from llmtrack.tensors import tokens
from tests.quality import tokenizers as made

BOS, EOS = 0, 1  # of the byte-level one, whose bytes follow
A = made.byte_level().token_to_id("a")


def engine(template: str) -> made.TokenizingEngine:
    """Neither token has a role: only what the tokenizer does can tell."""
    return made.wrap(made.around(made.byte_level(), template))


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
def test_what_stands_before_a_text_is_kept_and_what_stands_after_it_is_not(
    template: str, before: tuple[int, ...]
) -> None:
    one = engine(template)
    assert one.info.special_tokens.prefix == before
    assert one.encode("aa") == [*before, A, A]
    assert one.encode("aa", special_tokens=False) == [A, A]
    assert one.encode("") == [*before]
    assert prompt_ids(one, GenerateTask(prompts=("aa",), max_new_tokens=1)) == ((*before, A, A),)
    # Only text is scored: without anything before it, its first token is given.
    for quality in (score_documents(one, ["aaa"]), score_rolling(one, ["aaa"])):
        assert (quality.tokens_scored, quality.bytes_scored) == ((3, 3) if before else (2, 2))


def test_cls_and_sep_are_bos_and_eos_by_other_names() -> None:
    one = made.wrap(made.word_piece(), unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    assert one.encode("one two") == [1, 3, 4]
    assert one.info.special_tokens.start_id == 1
    assert encode_text(one, "one two", "model").ids == [1, 3, 4]


def test_an_unknown_word_is_not_taken_for_what_is_added() -> None:
    tokenizer = made.word_piece()
    tokenizer.post_processor = processors.BertProcessing(("[UNK]", 0), ("[UNK]", 0))
    assert tokens.prefix(made.wrap(tokenizer).tokenizer) == (0,)


def test_tokenizers_in_python_are_asked_the_same_way() -> None:
    assert tokens.prefix(made.SlowTokenizer()) == ()
    assert tokens.prefix(made.SlowTokenizer(adds_bos=True)) == (1,)
    assert tokens.encode(made.SlowTokenizer(adds_bos=True), "a", special_tokens=True) == [1, 3]


@pytest.mark.parametrize(("rule", "ids"), [("tokenizer", [BOS, A]), ("model", [BOS, A]), ("none", [BOS, A])])
@pytest.mark.parametrize("template", ["<s> $A", "<s> $A </s>"])
def test_a_text_that_begins_with_the_bos_gets_no_second_one(rule: str, ids: list[int], template: str) -> None:
    one = made.wrap(made.around(made.byte_level(), template), bos_token="<s>")
    encoded = encode_text(one, "<s>a", rule)
    assert (encoded.ids, encoded.text) == (ids, b"a")
    assert one.encode("<s>a") == [BOS, A]


def test_a_text_that_ends_with_the_eos_keeps_it() -> None:
    one = made.wrap(made.around(made.byte_level(), "<s> $A </s>"), eos_token="</s>")
    encoded = encode_text(one, "a</s>", "tokenizer")
    assert (encoded.ids, encoded.text) == ([BOS, A, EOS], b"a</s>")


def test_only_what_is_missing_is_put_before_a_text() -> None:
    assert engine("<s> </s> $A").encode("</s>a") == [BOS, EOS, A]
    assert engine("<s> </s> $A").encode("<s></s>a") == [BOS, EOS, A]


def test_an_overlong_prompt_keeps_what_the_tokenizer_puts_before_it() -> None:
    task = GenerateTask(prompts=("a" * 9,), max_new_tokens=1, max_prompt_tokens=4, overlong_prompt="truncate")
    assert prompt_ids(engine("<s> </s> $A"), task) == ((BOS, EOS, A, A),)


@pytest.mark.parametrize(
    ("tokenizer", "roles", "unknown"),
    [
        (made.unigram(), {}, 0),
        (made.word_piece(), {}, 0),
        (made.word_piece(), {"unk_token": "[SEP]"}, 0),
        (made.byte_fallback(), {}, None),
        (made.byte_level(), {"unk_token": "</s>"}, EOS),  # never used
        (made.without_unknown(), {}, None),
    ],
)
def test_the_unknown_token_is_found_by_what_the_tokenizer_does(
    tokenizer: Tokenizer, roles: dict[str, str], unknown: int | None
) -> None:
    assert made.wrap(tokenizer, **roles).info.special_tokens.unk_id == unknown
