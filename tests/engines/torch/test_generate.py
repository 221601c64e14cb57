"""Generation by the PyTorch engine: against a plain loop, and end-of-sequence tokens by hand."""

from __future__ import annotations

import pytest
import torch

from llmtrack.testing.engines import generate
from tests.engines.models import bigram_engine, chain, small

PROMPTS = tuple(tuple(text.encode()) for text in ("The harbour", "Boats come in with the tide", "x"))


def greedy_loop(engine, prompt, new_tokens):
    """Decode greedily without cache and padding, the end of the sequence forbidden."""
    forbidden = sorted(engine._eos_ids)
    ids = list(prompt)
    with torch.no_grad():
        for _ in range(new_tokens):
            logits = engine.model(torch.tensor([ids])).logits[0, -1]
            logits[forbidden] = -torch.inf
            ids.append(int(logits.argmax()))
    return tuple(ids[len(prompt) :])


def test_generation_equals_a_plain_loop(engine):
    (row,), _ = generate(engine, PROMPTS[:1], 12)
    assert row == greedy_loop(engine, PROMPTS[0], 12)
    assert len(set(row)) > 2, "repetition would prove nothing"


@pytest.mark.slow(1)
def test_right_padding_changes_all_but_the_longest_row(engine):
    """Short rows continue from their pads, which is useful for timing only."""
    ids, steps = generate(engine, PROMPTS, 12, padding_side="right")
    assert steps == 12
    assert [len(row) for row in ids] == [12, 12, 12]
    assert ids[1] == generate(engine, PROMPTS[1:2], 12)[0][0]
    assert ids[0] != generate(engine, PROMPTS[:1], 12)[0][0]


# Ids 0 to 9; 9 ends a sequence and, as the tokenizer has no pad token, also pads.
# 1 -> 2 -> 9: a row that ends after two tokens. 3 -> 4 -> 5 -> 6 -> 9: one that ends after four.
ENDING = chain((1, 2), (2, 9), (3, 4), (4, 5), (5, 6), (6, 9), (9, 7), (7, 7), size=10)


def test_rows_stop_at_the_end_token_which_is_kept_and_counted():
    engine = bigram_engine(ENDING, eos=9)
    ids, steps = generate(engine, ((1,), (3,)), 12, ignore_eos=False)
    assert ids == ((2, 9), (4, 5, 6, 9))
    assert steps == 4


def test_a_row_without_an_end_gets_all_tokens():
    ids, steps = generate(bigram_engine(ENDING, eos=9), ((1,), (7,)), 5, ignore_eos=False)
    assert ids == ((2, 9), (7, 7, 7, 7, 7))
    assert steps == 5


def test_an_ignored_end_is_never_chosen():
    ids, steps = generate(bigram_engine(ENDING, eos=9), ((1,), (3,)), 6, ignore_eos=True)
    assert steps == 6
    assert [len(row) for row in ids] == [6, 6]
    assert not any(9 in row for row in ids)
    # 2 and 6 would be followed by the end, which another token replaces.
    assert [row[:1] for row in ids] == [(2,), (4,)]
    assert ids[1][:3] == (4, 5, 6)


def test_any_of_several_end_tokens_stops_a_row():
    ids, _ = generate(bigram_engine(ENDING, eos=[9, 5]), ((1,), (3,)), 12, ignore_eos=False)
    assert ids == ((2, 9), (4, 5))


def test_an_end_token_in_the_prompt_is_ordinary():
    # Pads are masked by position, so the prompt's own 9 is attended to.
    ids, _ = generate(bigram_engine(ENDING, eos=9), ((1, 9), (3, 4, 9)), 2, ignore_eos=False)
    assert ids == ((7, 7), (7, 7))


def test_transformers_logs_no_advice(capfd):
    """Nothing filters its log here; each piece of advice appears once per process."""
    from transformers.utils import logging

    logging.warning_once.cache_clear()
    loaded = small("llama", bos_token_id=1, eos_token_id=2)
    assert loaded.model.generation_config.bos_token_id == 1
    generate(loaded, ((5, 6), (7, 8, 9)), 12)
    assert capfd.readouterr().err == ""
