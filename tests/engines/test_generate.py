"""The PyTorch engine generates what a plain greedy loop does, however it is batched, padded and cached."""

from __future__ import annotations

import pytest
import torch

from llmtrack.engine import GenerateRequest
from tests.engines.models import bigram_engine, chain, small

PROMPTS = tuple(tuple(text.encode()) for text in ("The harbour", "Boats come in with the tide", "x"))


def generate(engine, prompts, new_tokens=12, **settings):
    steps = []
    request = GenerateRequest(prompts, new_tokens, **settings)
    return engine.generate(request, lambda: steps.append(1)).new_ids, len(steps)


def greedy_loop(engine, prompt, new_tokens):
    """Greedy decoding as a textbook has it: no cache, no padding, the end of the sequence forbidden."""
    forbidden = sorted(engine._eos_ids)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new_tokens):
            logits = engine.model(torch.tensor([ids])).logits[0, -1]
            logits[forbidden] = -torch.inf
            ids.append(int(logits.argmax()))
    return tuple(ids[len(prompt) :])


def test_a_plain_loop_gives_the_same_tokens(engine):
    (row,), _ = generate(engine, PROMPTS[:1])
    assert row == greedy_loop(engine, PROMPTS[0], 12)
    assert len(set(row)) > 2, "a model that repeats itself proves nothing"


@pytest.mark.parametrize("new_tokens", [1, 2, 12])
@pytest.mark.parametrize("rows", [1, 3])
def test_each_new_token_is_a_step(engine, rows, new_tokens):
    ids, steps = generate(engine, PROMPTS[:rows], new_tokens)
    assert steps == new_tokens
    assert [len(row) for row in ids] == [new_tokens] * rows


@pytest.mark.slow(1)
@pytest.mark.parametrize("use_cache", [True, False])
def test_left_padding_gives_each_row_what_it_gives_alone(engine, use_cache):
    together, _ = generate(engine, PROMPTS, use_cache=use_cache)
    alone = tuple(generate(engine, (prompt,), use_cache=use_cache)[0][0] for prompt in PROMPTS)
    assert together == alone


@pytest.mark.slow(1)
def test_the_cache_changes_no_token(engine):
    assert generate(engine, PROMPTS, use_cache=True) == generate(engine, PROMPTS, use_cache=False)


@pytest.mark.slow(1)
def test_right_padding_runs_and_only_the_longest_row_is_as_alone(engine):
    """Short rows go on from their pads: that can be timed, and must not be passed off as the model's text."""
    ids, steps = generate(engine, PROMPTS, padding_side="right")
    assert steps == 12
    assert [len(row) for row in ids] == [12, 12, 12]
    assert ids[1] == generate(engine, PROMPTS[1:2])[0][0]
    assert ids[0] != generate(engine, PROMPTS[:1])[0][0]


def test_rows_of_one_length_are_the_same_on_either_side(engine):
    rows = (PROMPTS[0], PROMPTS[1][: len(PROMPTS[0])])
    assert generate(engine, rows, padding_side="right") == generate(engine, rows, padding_side="left")


# Ids 0 to 9; 9 ends a sequence and, as the tokenizer has no pad token, also pads.
# 1 -> 2 -> 9: a row that ends after two tokens. 3 -> 4 -> 5 -> 6 -> 9: one that ends after four.
ENDING = chain((1, 2), (2, 9), (3, 4), (4, 5), (5, 6), (6, 9), (9, 7), (7, 7), size=10)


def test_rows_stop_at_their_end_which_is_kept_and_counted():
    engine = bigram_engine(ENDING, eos=9)
    ids, steps = generate(engine, ((1,), (3,)), ignore_eos=False)
    assert ids == ((2, 9), (4, 5, 6, 9))
    assert steps == 4


def test_a_row_that_does_not_end_gets_all_its_tokens():
    ids, steps = generate(bigram_engine(ENDING, eos=9), ((1,), (7,)), 5, ignore_eos=False)
    assert ids == ((2, 9), (7, 7, 7, 7, 7))
    assert steps == 5


def test_ignoring_the_end_yields_all_tokens_and_no_end():
    ids, steps = generate(bigram_engine(ENDING, eos=9), ((1,), (3,)), 6, ignore_eos=True)
    assert steps == 6
    assert [len(row) for row in ids] == [6, 6]
    assert not any(9 in row for row in ids)
    # 2 and 6 would be followed by the end: another token takes its place.
    assert [row[:1] for row in ids] == [(2,), (4,)]
    assert ids[1][:3] == (4, 5, 6)


def test_any_of_several_ends_stops_a_row():
    ids, _ = generate(bigram_engine(ENDING, eos=[9, 5]), ((1,), (3,)), ignore_eos=False)
    assert ids == ((2, 9), (4, 5))


def test_an_end_inside_the_prompt_is_an_ordinary_token():
    # Pads are known by position: the prompt's own 9 is attended to and continued from.
    ids, _ = generate(bigram_engine(ENDING, eos=9), ((1, 9), (3, 4, 9)), 2, ignore_eos=False)
    assert ids == ((7, 7), (7, 7))


def test_transformers_has_no_advice_to_give(capfd):
    """In this process nothing filters it, and it gives each only once."""
    from transformers.utils import logging

    logging.warning_once.cache_clear()
    loaded = small("llama", bos_token_id=1, eos_token_id=2)
    assert loaded.model.generation_config.bos_token_id == 1
    generate(loaded, ((5, 6), (7, 8, 9)))
    assert capfd.readouterr().err == ""
