"""Which rows may share a batch is asked of the float model, and what a recipe rounds is not held against it."""

from __future__ import annotations

import pytest
import torch

from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.engines.torch import pytorch
from llmtrack.quantize.recipe import Recipe
from llmtrack.tensors.padding import pad_rows

UNEQUAL = ((5, 17, 99), (7, 8), (3, 4, 5, 6, 7, 8), (200,))
ROUNDS = "ids with another batch, number of threads or CPU"


def blurred(model):
    """Change each product by up to a tenth, each time otherwise: worse than any CPU's rounding behind 8-bit activations."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, given, made: made * (0.9 + 0.2 * torch.rand(made.shape)))


def one_range(model):
    """Round what each product is given to 8 bits by the largest value of the whole batch."""

    def rounded(_, given):
        step = given[0].abs().max() / 127
        return ((given[0] / step).round() * step,)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


def quantized(monkeypatch, apply, **declared):
    recipe = Recipe("stand-in", "torch", "activations", "int8", apply, **declared)
    monkeypatch.setattr(pytorch, "find_recipe", lambda backend, name: recipe)
    return load_engine("synthetic:tiny", device="cpu", quantization="stand-in")


@pytest.mark.slow(1)
@pytest.mark.parametrize("declared", [True, False])
def test_rows_of_unequal_lengths_share_a_batch_however_much_a_recipe_blurs_what_is_computed(monkeypatch, declared):
    engine = quantized(monkeypatch, blurred, rounds_activations=declared)
    assert len(engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None).new_ids) == len(UNEQUAL)
    _, *warnings = engine.info.warnings  # the first says that the weights are random
    assert len(warnings) == declared
    assert all(each.startswith("stand-in rounds activations") for each in warnings)
    assert all(each.endswith(ROUNDS) for each in warnings)


@pytest.mark.slow(1)
def test_pads_that_the_float_model_heeds_are_refused_of_the_quantized_one(monkeypatch):
    found = pytorch.load_model

    def unmasked(_, given, named):
        mask = named.get("attention_mask")
        return given, {**named, "attention_mask": None if mask is None else torch.ones_like(mask)}

    def reading_pads(*asked, **named):
        loaded = found(*asked, **named)
        loaded.model.base_model.register_forward_pre_hook(unmasked, with_kwargs=True)
        return loaded

    monkeypatch.setattr(pytorch, "load_model", reading_pads)
    engine = quantized(monkeypatch, lambda model: None, rounds_activations=True)
    assert any("left pads change what this model says" in each for each in engine.info.warnings)
    with pytest.raises(Exception, match="rows of unequal lengths cannot be generated from in one batch"):
        engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None)


@pytest.mark.slow(1)
def test_a_recipe_that_mixes_rows_and_does_not_say_so_is_found(monkeypatch):
    engine = quantized(monkeypatch, one_range)
    assert "left pads change what this model says" in engine.info.warnings[1]


@pytest.mark.slow(1)
def test_a_recipe_that_rounds_by_one_range_says_so_and_scores_each_row_alone(monkeypatch):
    engine = quantized(monkeypatch, one_range, depends_on_batch=True)
    _, warning = engine.info.warnings  # the first says that the weights are random
    assert "activation ranges are shared by the whole batch" in warning
    assert "computed one row at a time" in warning
    rows = [[(7 * row + 13 * at) % 250 + 1 for at in range(12)] for row in range(4)]
    alone = [engine.score(*pad_rows([row], 0, "right"))[0].item() for row in rows]
    assert engine.score(*pad_rows(rows, 0, "right"))[0].tolist() == alone
    assert len(engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None).new_ids) == len(UNEQUAL)
