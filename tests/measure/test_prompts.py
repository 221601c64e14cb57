"""Tokenized prompts: lengths, rules for empty and overlong ones, and their facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from experiments.edge_prompts import PROMPTS
from llmtrack import load_engine
from llmtrack.engine import SpecialTokens
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.measure.prompts import prompt_ids, tokenize_prompts
from llmtrack.spec.task import GenerateTask, workload_id

BOS, EOS = 1, 2
BOTH = SpecialTokens({BOS: "<s>", EOS: "</s>"}, BOS, EOS)


def engine(context: int | None = 20, special: SpecialTokens = BOTH, adds_bos: bool = False):
    """One token per character; 10 prompt tokens fit beside 10 new ones."""

    class Engine(ScriptedEngine):
        def encode(self, text):
            return [BOS] * adds_bos + super().encode(text)

    scripted = Engine(FakeClock(), Script(0.03, 0.005), context_length=context)
    scripted._info = replace(scripted.info, special_tokens=special)
    return scripted


def task(*texts: str, **settings) -> GenerateTask:
    return GenerateTask(texts, **{"max_new_tokens": 10, **settings})


def spell(text: str) -> tuple[int, ...]:
    return tuple(map(ord, text))


def test_a_text_that_fits_is_unchanged():
    prompts = tokenize_prompts(engine(), task("abc", "de"))
    assert prompts.ids == (spell("abc"), spell("de"))
    assert prompts.facts == {"special_tokens_in_prompt": 0}
    assert prompts.warnings == ()


@pytest.mark.parametrize("length", [1, 3, 4, 9, 10])
def test_a_text_is_repeated_to_a_length(length):
    (ids,) = prompt_ids(engine(), task("abc", prompt_tokens=length))
    assert ids == spell("abc abc abc abc")[:length]


@pytest.mark.parametrize(("share", "length"), [(1.0, 10), (0.5, 5), (0.51, 6)])
def test_a_text_is_repeated_to_a_share_of_the_context(share, length):
    prompts = tokenize_prompts(engine(), task("abc", prompt_share=share))
    assert len(prompts.ids[0]) == length
    assert prompts.facts["prompt_rule"] == f"repeated to {length} tokens: the context has room for 10"
    assert prompts.warnings == ()


def test_a_limit_below_the_context_is_reported():
    prompts = tokenize_prompts(engine(3000), task("abc", prompt_share=1.0, max_prompt_tokens=7))
    assert len(prompts.ids[0]) == 7
    assert prompts.facts["prompt_rule"] == ("repeated to 7 tokens: max_prompt_tokens=7, the context has room for 2,990")
    assert "prompt_truncated_tokens" not in prompts.facts


def test_a_limit_beyond_the_context_has_no_effect():
    assert len(prompt_ids(engine(), task("abc", prompt_share=1.0, max_prompt_tokens=500))[0]) == 10


def test_an_overlong_prompt_is_an_error_by_default():
    for settings in ({"prompt_share": 1.5}, {"prompt_tokens": 11}):
        with pytest.raises(ScenarioError, match="ask for at most 10 prompt tokens") as caught:
            prompt_ids(engine(), task("abc", **settings))
        assert caught.value.kind == "too_long"
    with pytest.raises(ScenarioError, match="longer than the 4 allowed: max_prompt_tokens=4") as caught:
        prompt_ids(engine(), task("abcdef", max_prompt_tokens=4))
    assert caught.value.kind == "too_long"


def test_an_overlong_prompt_may_be_truncated_to_its_last_tokens():
    truncating = task("abcdefghijklmn", overlong_prompt="truncate")
    assert prompt_ids(engine(), truncating) == (spell("efghijklmn"),)
    assert tokenize_prompts(engine(), truncating).facts == {
        "prompt_rule": "truncated from 14 tokens to the last 10: the context has room for 10",
        "prompt_truncated_tokens": 4,
        "special_tokens_in_prompt": 0,
    }
    assert tokenize_prompts(engine(), truncating).warnings == (
        "prompt truncated from 14 tokens to the last 10: the context has room for 10",
    )
    (ids,) = prompt_ids(engine(), task("abc", prompt_share=1.5, overlong_prompt="truncate"))
    assert ids == spell("abc abc abc abc")[5:15]


def test_a_truncated_prompt_keeps_its_bos():
    (ids,) = prompt_ids(engine(adds_bos=True), task("abcdefghijklmn", overlong_prompt="truncate"))
    assert ids == (BOS, *spell("fghijklmn"))
    single = task("abcdef", max_prompt_tokens=1, overlong_prompt="truncate")
    assert prompt_ids(engine(adds_bos=True), single) == ((BOS,),)


def test_no_room_for_a_prompt_is_always_an_error():
    for settings in ({"prompt_share": 1.0}, {}):
        with pytest.raises(ScenarioError, match="10 new tokens leave no room for a prompt in the context of 10 tokens"):
            prompt_ids(engine(10), task("abc", overlong_prompt="truncate", **settings))


def test_an_unknown_context_sets_no_limit_and_cannot_be_filled():
    assert len(prompt_ids(engine(None), task("a" * 999))[0]) == 999
    with pytest.raises(ScenarioError, match="give max_prompt_tokens"):
        prompt_ids(engine(None), task("abc", prompt_share=1.0))
    assert len(prompt_ids(engine(None), task("abc", prompt_share=1.0, max_prompt_tokens=5))[0]) == 5


def test_an_empty_prompt_is_an_error_by_default():
    with pytest.raises(ScenarioError, match="has no tokens") as caught:
        prompt_ids(engine(), task(""))
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("special", "start", "rule"),
    [
        (BOTH, BOS, "empty: starts from <s> (the BOS)"),
        (replace(BOTH, bos_id=None), EOS, "empty: starts from </s> (the EOS, for want of a BOS)"),
        (SpecialTokens({}, 0, EOS), 0, "empty: starts from 0 (the BOS)"),
    ],
)
def test_an_empty_prompt_may_start_from_bos_or_eos(special, start, rule):
    prompts = tokenize_prompts(engine(special=special), task("", empty_prompt="bos"))
    assert prompts.ids == ((start,),)
    assert prompts.facts["prompt_rule"] == rule


def test_without_a_start_token_an_empty_prompt_stays_an_error():
    with pytest.raises(ScenarioError, match="neither a BOS nor an EOS"):
        prompt_ids(engine(special=SpecialTokens({})), task("", empty_prompt="bos"))


def test_a_tokenizer_that_adds_a_bos_needs_no_rule_for_an_empty_prompt():
    prompts = tokenize_prompts(engine(adds_bos=True), task(""))
    assert prompts.ids == ((BOS,),)
    assert prompts.facts["prompt_rule"].startswith("empty: starts from <s>, which the tokenizer puts")
    assert prompts.facts["special_tokens_in_prompt"] == 1


def test_facts_of_a_batch():
    prompts = tokenize_prompts(engine(), task("", "a\x01b", "c" * 12, empty_prompt="bos", overlong_prompt="truncate"))
    assert prompts.facts == {
        "prompt_rule": "empty: starts from <s> (the BOS); "
        "truncated from 12 tokens to the last 10: the context has room for 10",
        "prompt_truncated_tokens": 2,
        "special_tokens_in_prompt": 2,
    }


def test_unknown_special_tokens_are_not_counted():
    assert tokenize_prompts(engine(special=SpecialTokens({})), task("a\x01b")).facts == {"special_tokens_in_prompt": 0}


def test_lengths_but_not_rules_are_part_of_the_workload():
    plain = workload_id(task("abc"))
    assert workload_id(task("abc", empty_prompt="bos", overlong_prompt="truncate")) == plain
    ids = {plain} | {
        workload_id(task("abc", prompt_share=share, max_prompt_tokens=limit))
        for share, limit in ((1.0, None), (1.25, None), (None, 5), (1.0, 5))
    }
    assert len(ids) == 5


@pytest.fixture(scope="module")
def tiny():
    return load_engine("synthetic:tiny", device="cpu")


def test_special_tokens_of_a_real_tokenizer(tiny):
    assert tiny.info.special_tokens == SpecialTokens({256: "<|bos|>", 257: "<|eos|>", 258: "<|pad|>"}, 256, 257)
    facts = tokenize_prompts(tiny, task("a<|bos|>b<|eos|><|im_end|>")).facts
    assert facts == {"special_tokens_in_prompt": 2}


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_edge_prompts_survive_a_real_tokenizer(tiny, prompt):
    ids = tiny.encode(prompt.text)
    assert tiny.tokenizer.decode(ids, clean_up_tokenization_spaces=False) == prompt.text
    assert len(ids) < 500, "a context of 512 holds every prompt that is not long on purpose"
