"""Scoring against plain references and values by hand, and the padding mistakes that these would detect."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch

from llmtrack.tensors import likelihood as scoring
from llmtrack.tensors.likelihood import predicted, sum_nll
from llmtrack.tensors.padding import pad_rows
from tests.engines.models import bigram_engine, small

TEXTS = (
    "The harbour wakes before the town does.",
    "Boats come in",
    "with the tide, their holds full of herring",
    "ab",
    "é",
    "and the market fills with voices that know the price of everything.",
)
ROWS = [tuple(text.encode()) for text in TEXTS]
LN2 = math.log(2)


@cache
def reference(engine, row):
    """Return the summed negative log-likelihood of one row: alone, unpadded, in float64."""
    with torch.no_grad():
        log_p = engine.model(torch.tensor([row])).logits[0].double().log_softmax(dim=-1)
    return -sum(float(log_p[i, token]) for i, token in enumerate(row[1:]))


def score_all(engine, rows, batch_size, side, pad_id=0):
    sums, counts = [], []
    for first in range(0, len(rows), batch_size):
        nll, count = engine.score(*pad_rows(rows[first : first + batch_size], pad_id, side))
        sums += nll.tolist()
        counts += count.tolist()
    return sums, counts


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_size", [1, 2, 6])
def test_sums_equal_those_of_each_row_alone(engine, batch_size, side):
    sums, counts = score_all(engine, ROWS, batch_size, side)
    assert sums == pytest.approx([reference(engine, row) for row in ROWS], rel=1e-6)
    assert counts == [len(row) - 1 for row in ROWS]


@pytest.mark.parametrize("pad_id", [0, 97, 257])
def test_the_pad_id_has_no_effect(tiny, pad_id):
    rows = [(97, 257, 98, 97), (97, 98)]
    expected = [reference(tiny, row) for row in rows]
    for side in ("left", "right"):
        assert score_all(tiny, rows, 2, side, pad_id)[0] == pytest.approx(expected, rel=1e-6)


def test_softmax():
    # softmax(2.0, 1.0, 0.1) = (0.659, 0.242, 0.099), and -ln 0.242 = 1.417.
    hidden, yes = torch.tensor([[[2.0, 1.0, 0.1]]]), torch.tensor([[True]])
    (loss,) = sum_nll(hidden, torch.tensor([[1]]), yes, lambda logits: logits, 3)
    assert float(loss) == pytest.approx(1.417, abs=5e-4)


# Probabilities of the next token, powers of one half: every loss is a whole number of ln 2.
# After 0: 1/2 1/4 1/8 1/8; after 1: 1/8 1/2 1/4 1/8; after 2: 1/4 1/8 1/8 1/2; after 3: 1/8 1/8 1/2 1/4.
HALVES = torch.tensor([[1, 2, 3, 3], [3, 1, 2, 3], [2, 3, 3, 1], [3, 3, 1, 2]])
BIGRAMS = -HALVES.float() * LN2
# 0 0 1 2 3: 1 + 2 + 2 + 1 = 6.   1 0 3 (3 pads): 3 + 3 = 6.   2: predicts nothing.   3 3 0: 2 + 3 = 5.
BIGRAM_ROWS, BIGRAM_SUMS, BIGRAM_COUNTS = ([[0, 0, 1, 2, 3], [1, 0, 3], [2], [3, 3, 0]], [6, 6, 0, 5], [4, 2, 0, 2])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4])
def test_bigrams(batch_size, side):
    sums, counts = score_all(bigram_engine(BIGRAMS, eos=3), BIGRAM_ROWS, batch_size, side, pad_id=3)
    assert sums == pytest.approx([halves * LN2 for halves in BIGRAM_SUMS])
    assert counts == BIGRAM_COUNTS


def bigram_sums(valid, ids):
    return (sum_nll(BIGRAMS[ids[:, :-1]], ids[:, 1:], valid, lambda x: x, 4) / LN2).round(decimals=4).tolist()


@pytest.mark.parametrize("side", ["left", "right"])
def test_masking_by_the_pad_id_would_be_detected(side):
    """3 is the pad and a real token: masking by id would drop the losses of predicting it."""
    ids, mask = pad_rows(BIGRAM_ROWS, 3, side)
    assert bigram_sums(predicted(mask), ids) == BIGRAM_SUMS
    mistaken = bigram_sums(ids[:, 1:] != 3, ids)
    assert mistaken != BIGRAM_SUMS
    assert mistaken[0] == 5  # 1 + 2 + 2: the last token is a real 3


def test_scoring_the_first_token_after_a_left_pad_would_be_detected():
    """Ignoring pads as targets only: 1 0 3 behind two pads also scores 1 after a 3, another 3 ln 2."""
    ids, mask = pad_rows(BIGRAM_ROWS, 3, "left")
    assert bigram_sums(mask[:, 1:].bool(), ids) == [6, 6 + 3, 1, 5 + 2]


def test_scoring_pads_would_be_detected():
    ids, mask = pad_rows(BIGRAM_ROWS, 3, "right")
    everything = torch.ones_like(mask[:, 1:]).bool()
    # 1 0 3 and two pads: a 3 after a 3 costs 2, twice.
    assert bigram_sums(everything, ids)[1] == 6 + 4


def test_the_head_is_applied_in_chunks(tiny, monkeypatch):
    """The head never gets more than a chunk of tokens, and the sums stay the same."""
    at_once, _ = score_all(tiny, ROWS, 6, "right")
    monkeypatch.setattr(scoring, "CHUNK_BYTES", 50 * 4 * tiny.info.vocab_size)
    sizes = []
    hook = tiny.model.lm_head.register_forward_hook(lambda m, inputs, out: sizes.append(inputs[0].shape[0]))
    try:
        chunked, _ = score_all(tiny, ROWS, 6, "right")
    finally:
        hook.remove()
    tokens = sum(len(row) - 1 for row in ROWS)
    assert sizes == [50] * (tokens // 50) + [tokens % 50]
    assert chunked == pytest.approx(at_once, rel=1e-6)


ODD_HEADS = {
    "gemma2": {"final_logit_softcapping": 2.0, "query_pre_attn_scalar": 4},
    "gemma2, mild": {"final_logit_softcapping": 1000.0, "query_pre_attn_scalar": 4},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 3.0},
}


@pytest.mark.parametrize("name", ODD_HEADS)
def test_a_model_that_transforms_its_logits_is_scored_by_them(name):
    engine = small(name.split(",")[0], **ODD_HEADS[name])
    sums, _ = score_all(engine, ROWS, 3, "right")
    assert sums == pytest.approx([reference(engine, row) for row in ROWS], rel=1e-6)
    assert engine._scorer._head is None


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "mistral", "qwen3"])
def test_a_plain_model_is_scored_by_its_head(architecture):
    engine = small(architecture)
    sums, _ = score_all(engine, ROWS, 3, "left")
    assert sums == pytest.approx([reference(engine, row) for row in ROWS], rel=1e-6)
    assert engine._scorer._head is engine.model.lm_head


def test_half_precision_sums_are_close(tiny, tiny_in_bfloat16):
    sums, _ = score_all(tiny_in_bfloat16, ROWS, 6, "right")
    assert sums == pytest.approx([reference(tiny, row) for row in ROWS], rel=0.05)
