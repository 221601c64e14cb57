"""A text gives the same results whatever rows share its batch or came before it, or the batch is rejected."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from llmtrack.engine import GenerateRequest
from llmtrack.engines.rows import Sharing, changed_by_pads, length_dependent_rope, sharing_of_generation
from llmtrack.errors import ScenarioError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.quality.drift import compare_distributions
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.tensors.padding import pad_rows
from tests.engines.models import small

FACTORS = {"short_factor": [1.0] * 2, "long_factor": [4.0] * 2}
LONGROPE = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 12, **FACTORS}
MAMBA = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 4, "mamba_n_groups": 1}

MODELS = {
    "longrope": ("llama", {"rope_scaling": LONGROPE, "original_max_position_embeddings": 12}),
    "phi3": (
        "phi3",
        {"original_max_position_embeddings": 12, "rope_scaling": {"type": "longrope", **FACTORS}, "head_dim": ...},
    ),
    "dynamic": ("llama", {"max_position_embeddings": 12, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "mamba": ("mamba", {"state_size": 3}),
    "bamba": ("bamba", {"attn_layer_indices": [1], **MAMBA}),
    "recurrent gemma": ("recurrent_gemma", {"num_hidden_layers": 3, "lru_width": 8, "attention_window_size": 64}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
}
# Below, at and above 12 tokens: of a row of 13, twelve are read.
LENGTHS = (3, 30, 12, 13, 14, 9, 40, 2, 14)
ROWS = [[(7 * row + 13 * at) % 250 + 1 for at in range(length)] for row, length in enumerate(LENGTHS)]


def each_alone(engine, rows, new_tokens):
    """Return the continuation of each row alone."""
    requests = (GenerateRequest((row,), new_tokens) for row in rows)
    return tuple(engine.generate(request, lambda: None).new_ids[0] for request in requests)


def make(name):
    architecture, settings = MODELS[name]
    engine = small(architecture, **settings)
    # Biases of zero would hide what pads do to a convolution.
    with torch.no_grad():
        for parameter in engine.model.parameters():
            if parameter.ndim == 1 and not parameter.any():
                parameter.fill_(0.2)
    return engine


def alone(model, row):
    """Return the summed loss of a row by a fresh copy of the model."""
    with torch.no_grad():
        logits = copy.deepcopy(model)(torch.tensor([row[:-1]]), use_cache=False).logits[0].double()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum"))


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", MODELS)
def test_scores_do_not_depend_on_batch_padding_or_order(name):
    engine = make(name)
    fresh = make(name).model
    expected = [alone(fresh, row) for row in ROWS]
    for size, side, step in ((1, "right", 1), (4, "left", -1), (4, "right", 1), (9, "left", 1), (9, "right", -1)):
        rows = ROWS[::step]
        sums: list[float] = []
        for first in range(0, len(rows), size):
            sums += engine.score(*pad_rows(rows[first : first + size], 0, side))[0].tolist()
        assert sums == pytest.approx(expected[::step], rel=1e-5), (size, side, step)


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", ["longrope", "dynamic", "bamba"])
def test_perplexity_and_drift_do_not_depend_on_the_batch_size(name):
    engine = make(name)
    texts = ["a" * 3, "The harbour lay still, and the boats", "wind and water", "thirteen char", "z" * 40]
    limits = {"max_length": 12 if name == "dynamic" else 40}
    documents = {
        score_documents(engine, texts, batch_size=size, padding_side=side, **limits).loss
        for size in (1, 4, 9)
        for side in ("left", "right")
    }
    assert max(documents) - min(documents) < 1e-6
    rolling = {score_rolling(engine, texts, batch_size=size, stride=5, **limits).loss for size in (1, 4)}
    assert max(rolling) - min(rolling) < 1e-6
    drift = compare_distributions(engine, make(name), texts, **limits)
    assert drift.kl_divergence == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", MODELS)
def test_generation_does_not_depend_on_earlier_calls(name):
    # Within the original context of some, and beyond it.
    requests = [GenerateRequest((tuple(ROWS[row]),), 6) for row in (0, 4)]
    for request in requests:
        first = make(name).generate(request, lambda: None)
        engine = make(name)
        engine.score(*pad_rows(ROWS[:4], 0, "right"))
        engine.generate(GenerateRequest((tuple(ROWS[6][:20]),), 6), lambda: None)
        assert engine.generate(request, lambda: None) == first


def test_a_prompt_of_one_token_starts_without_state_of_the_previous_text():
    engine = make("recurrent gemma")

    def generate(use_cache):
        requests = (GenerateRequest(((token,),), 6, use_cache=use_cache) for token in (11, 12, 16, 22))
        return [engine.generate(request, lambda: None) for request in requests]

    engine.generate(GenerateRequest((tuple(ROWS[1]),), 6), lambda: None)
    if TRANSFORMERS_MAJOR < 5:
        # It needs two tokens to start, or continues from another text.
        with pytest.raises(TypeError, match="NoneType"):
            generate(use_cache=True)
    else:
        assert generate(use_cache=True) == generate(use_cache=False)


def test_a_long_text_does_not_change_later_results_with_rotary_angles_per_kind_of_layer():
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    settings = {"max_position_embeddings": 12, "sliding_window": 64}
    engine = small("gemma3_text", layer_types=["full_attention", "sliding_attention"], rope_scaling=rope, **settings)
    short = ROWS[4]  # beyond the original context, so rotated according to its length
    first = engine.next_token_logits(short)
    engine.next_token_logits(ROWS[6])
    assert torch.equal(engine.next_token_logits(short), first)


@pytest.mark.parametrize("name", MODELS)
def test_a_batch_with_harmful_pads_is_rejected_and_equal_rows_are_not(name):
    engine = make(name)
    with pytest.raises(ScenarioError, match="cannot be generated from in one batch: use batch_size=1") as caught:
        engine.generate(GenerateRequest((tuple(ROWS[0]), tuple(ROWS[1])), 2), lambda: None)
    assert caught.value.kind == "unsupported"
    with pytest.raises(ScenarioError, match="pad_to_multiple=1"):
        engine.generate(GenerateRequest((tuple(ROWS[1]),), 2, pad_to_multiple=16), lambda: None)
    rows = (tuple(ROWS[4]), tuple(ROWS[8]))
    together = engine.generate(GenerateRequest(rows, 4), lambda: None).new_ids
    assert together == each_alone(engine, rows, 4)


def test_unequal_rows_within_the_original_context_share_a_batch():
    engine = make("longrope")
    rows = (tuple(ROWS[0]), tuple(ROWS[5]))
    together = engine.generate(GenerateRequest(rows, 3), lambda: None).new_ids
    assert together == each_alone(engine, rows, 3)
    with pytest.raises(ScenarioError):
        engine.generate(GenerateRequest(rows, 4), lambda: None)


def test_restrictions_are_reported_as_warnings():
    assert make("longrope").info.warnings == (
        "the rotary angles of this model (longrope) depend on the longest row of a batch: rows of more than 12 tokens "
        "are computed alone, or beside rows of the same length",
    )
    assert "rows are computed alone" in make("mamba").info.warnings[0]
    assert small("llama").info.warnings == ()


def test_classes_of_rows():
    assert Sharing().classes([3, 9, 5]) == [[0, 1, 2]]
    assert Sharing(5, "x").classes([3, 9, 5, 6, 9]) == [[0, 2], [1, 4], [3]]
    assert Sharing(0, "x").classes([3, 3, 4]) == [[0, 1], [2]]
    assert Sharing().unequal_up_to == math.inf


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_scaling": None}, None),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "max_position_embeddings": 64}, None),
        ({"rope_scaling": {"type": "yarn"}, "max_position_embeddings": 64}, None),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 64}, ("dynamic", 64)),
        ({"rope_scaling": {"type": "su"}, "original_max_position_embeddings": 16}, ("su", 16)),
        (
            {
                "rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 8},
                "max_position_embeddings": 64,
            },
            ("longrope", 8),
        ),
        (
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "dynamic"},
                    "sliding_attention": {"rope_type": "default"},
                },
                "max_position_embeddings": 64,
            },
            ("dynamic", 64),
        ),
    ],
)
def test_length_dependent_rotary_embeddings_are_found_in_either_spelling(config, expected):
    assert length_dependent_rope(config) == expected


def test_a_model_that_counts_pads_as_positions_is_detected():
    table = torch.linspace(-1, 1, 40).view(10, 4)

    def counting(ids, mask):
        return table[torch.arange(ids.shape[1])][None]

    def masked(ids, mask):
        return table[(mask.cumsum(1) - 1).clamp(min=0)]

    assert changed_by_pads(counting, 8)
    assert not changed_by_pads(masked, 8)


@pytest.mark.parametrize("name", ["openai-gpt", "ctrl"])
def test_models_with_their_own_generation_reject_unequal_rows_but_score_them(name):
    engine = small(name, n_embd=8, n_layer=2, n_head=2, dff=16, n_positions=64)
    alone = [float(engine.score(*pad_rows([row], 0, "right"))[0][0]) for row in ROWS[:2]]
    assert engine.score(*pad_rows(ROWS[:2], 0, "left"))[0].tolist() == pytest.approx(alone, rel=1e-5)
    unequal, equal = (tuple(tuple(ROWS[at]) for at in rows) for rows in ((0, 1), (4, 8)))
    if TRANSFORMERS_MAJOR < 5:  # later versions generate like the others
        with pytest.raises(ScenarioError, match="left pads change what this model generates"):
            engine.generate(GenerateRequest(unequal, 2), lambda: None)
    for rows in (equal,) if TRANSFORMERS_MAJOR < 5 else (equal, unequal):
        together = engine.generate(GenerateRequest(rows, 4), lambda: None).new_ids
        assert together == each_alone(engine, rows, 4)


@pytest.mark.slow(1)
def test_models_whose_rows_interact_reject_all_batches_but_score_them():
    engine = small("rwkv", attention_hidden_size=8)
    rows = (tuple(ROWS[4]), tuple(ROWS[8]))  # of one length
    with pytest.raises(ScenarioError, match="a row beside it changes what this model generates: use batch_size=1"):
        engine.generate(GenerateRequest(rows, 4), lambda: None)
    ids = list(rows[0])
    for _ in range(4):
        with torch.no_grad():
            ids.append(int(engine.model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    assert list(engine.generate(GenerateRequest(rows[:1], 4), lambda: None).new_ids[0]) == ids[-4:]
    alone = [float(engine.score(*pad_rows([row], 0, "right"))[0][0]) for row in rows]
    assert engine.score(*pad_rows(rows, 0, "left"))[0].tolist() == pytest.approx(alone, rel=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "gemma2"])
def test_other_models_generate_the_same_from_unequal_rows(name):
    engine = small(name)
    rows = (tuple(ROWS[0]), tuple(ROWS[1]))
    together = engine.generate(GenerateRequest(rows, 4), lambda: None).new_ids
    assert together == each_alone(engine, rows, 4)


def test_a_first_token_chosen_by_rounding_is_accepted():
    first, other = torch.tensor([[1.0, 1.0 + 1e-6, 0.0]]), torch.tensor([[1.0 + 1e-6, 1.0, 0.0]])
    steps = iter([(first, torch.tensor([[9.0, 0.0, 0.0]])), (other, torch.tensor([[0.0, 9.0, 0.0]]))])
    assert sharing_of_generation(Sharing(), lambda ids, mask: next(steps), 8) == Sharing()
    steps = iter([(first, first), (first, torch.tensor([[0.0, 9.0, 0.0]]))])
    assert sharing_of_generation(Sharing(), lambda ids, mask: next(steps), 8).reason
    assert sharing_of_generation(Sharing(3, "x"), lambda ids, mask: (), 8) == Sharing(3, "x")
