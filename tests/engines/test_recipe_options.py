"""Options of recipes are passed to them in every backend and tracked; others are rejected."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Annotated

import pytest
import torch

from llmtrack.engines.registry import load_engine
from llmtrack.engines.torch import pytorch
from llmtrack.errors import ExtensionError, ScenarioError, UsageError
from llmtrack.quantize import gguf, recipe
from llmtrack.quantize.recipe import Recipe
from llmtrack.spec.options import Checked, NoOptions, Option


@dataclass(frozen=True)
class Bits(Checked):
    bits: Annotated[int, Option("Bits of a weight.", min=2, max=8)] = 4
    signed: Annotated[bool, Option("With a sign.")] = True


SEEN = []


def rounded(model, options):
    SEEN.append(dict(options))
    for weight in model.parameters():
        scale = weight.abs().max() / 2 ** (options["bits"] - 1)
        weight.data = (weight / scale).round() * scale


def plain(model):
    SEEN.append("plain")


@pytest.fixture
def plugin_recipes(monkeypatch):
    """Return a function that installs recipes as those of another package."""
    SEEN.clear()

    def install(*installed):
        point = EntryPoint("theirs", "theirs:RECIPES", recipe.RECIPE_POINTS)
        monkeypatch.setattr(recipe, "extensions", lambda group: (point,))
        monkeypatch.setattr(recipe, "load_extension", lambda point: installed)
        recipe.recipes.cache_clear()
        return point

    yield install
    monkeypatch.undo()
    recipe.recipes.cache_clear()


@pytest.mark.slow(1)
def test_options_of_a_torch_recipe_are_passed_and_tracked(plugin_recipes):
    plugin_recipes(Recipe("rounded", "torch", "all weights", "int8", rounded, Bits))

    def loaded(**options):
        return load_engine("synthetic:tiny", device="cpu", quantization="rounded", **options)

    assert len({float(weight) for weight in loaded(bits=2).model.get_input_embeddings().weight[0]}) <= 5
    assert loaded().info.facts["bits"] == 4
    engine = loaded(bits=2, signed=False)
    assert (engine.info.facts["bits"], engine.info.facts["signed"]) == (2, False)
    assert SEEN == [{"bits": 2, "signed": True}, {"bits": 4, "signed": True}, {"bits": 2, "signed": False}]
    with pytest.raises(UsageError, match="bits"):
        loaded(bits=9)


@pytest.mark.slow(1)
def test_a_torch_recipe_without_options_gets_the_model_only(plugin_recipes):
    plugin_recipes(Recipe("plain", "torch", "nothing", "float32", plain))
    load_engine("synthetic:tiny", device="cpu", quantization="plain")
    assert SEEN == ["plain"]


def test_options_of_a_llamacpp_recipe_are_passed_and_make_separate_files(plugin_recipes, tmp_path, monkeypatch):
    def write(source, target, options):
        target.write_text(f"{source.read_text()} {options['bits']}")

    plugin_recipes(Recipe("mine", "llamacpp", "all", "int8", write, Bits))
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf, "converter", lambda: tmp_path)
    monkeypatch.setattr(gguf, "convert", lambda tool, source, target, kind: target.write_text(kind))
    monkeypatch.setattr(gguf, "build_isolated", lambda action, model, folder, work, *arguments: work(*arguments))
    folder = gguf.ModelFolder(tmp_path, "m")
    paths = [gguf.gguf_of(folder, "mine", options) for options in ((), (("bits", 2), ("threads", 1)))]
    assert [path.read_text() for path in paths] == ["f16 4", "f16 2"]


@pytest.mark.parametrize(("backend", "apply", "options", "calibrated", "why"), [
    ("torch", plain, Bits, False, "apply takes no options, and it declares bits, signed"),
    ("llamacpp", lambda source, target: None, Bits, False, "apply takes no options, and it declares bits, signed"),
    ("torch", plain, NoOptions, True, "does not read calibration text"),
    ("genai", plain, NoOptions, True, "does not read calibration text"),
])  # fmt: skip
def test_recipes_that_cannot_take_their_options_are_rejected(plugin_recipes, backend, apply, options, calibrated, why):
    point = plugin_recipes(Recipe("mine", backend, "all", "int8", apply, options, calibrated=calibrated))
    with pytest.raises(ExtensionError, match=why):
        recipe.extension_recipes(point)
    assert f"{backend}/mine" not in {listed.label for listed in recipe.recipes()}
    with pytest.raises(UsageError, match=why):
        recipe.find_recipe(backend, "mine")


@pytest.mark.parametrize(
    "apply", [rounded, lambda model, options=None: None, lambda *arguments: None, torch.nn.Identity]
)
def test_any_callable_that_takes_options_is_accepted(plugin_recipes, apply):
    point = plugin_recipes(Recipe("mine", "torch", "all", "int8", apply, Bits))
    assert [loaded.label for loaded in recipe.extension_recipes(point)] == ["torch/mine"]


def raises(*arguments):
    raise ZeroDivisionError("no scale\nat all")


@pytest.mark.slow(1)
@pytest.mark.parametrize(("apply", "why"), [
    (lambda model: model, "returned a LlamaForCausalLM, and not a mapping of facts to track, or None"),
    (lambda model: [("bits", 2)], "returned a list, and not a mapping of facts"),
    (lambda model: "done", "returned a str, and not a mapping of facts"),
    (lambda model: {1: 2}, "returned a dict, and not a mapping of facts"),
    (raises, "raised ZeroDivisionError: no scale at all"),
])  # fmt: skip
def test_a_recipe_with_a_wrong_return_value_is_named_in_one_line(plugin_recipes, apply, why):
    plugin_recipes(Recipe("mine", "torch", "all", "int8", apply))
    with pytest.raises(ExtensionError) as caught:
        load_engine("synthetic:tiny", device="cpu", quantization="mine")
    assert f"recipes theirs (theirs:RECIPES) cannot be used: apply of torch/mine {why}" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("backend", ["onnx", "genai", "openvino"])
@pytest.mark.parametrize("returned", [None, 3, "--fast", {"bits": 4}])
def test_each_backend_checks_what_its_recipes_return(plugin_recipes, backend, returned):
    mine = Recipe("mine", backend, "all", "int8", lambda job: returned)
    plugin_recipes(mine)
    with pytest.raises(ExtensionError, match=f"apply of {backend}/mine returned .*, and not a"):
        mine.run(object())


def test_a_recipes_own_error_is_passed_on(plugin_recipes):
    def refuse(model):
        raise ScenarioError("no kernel", kind="unsupported")

    mine = Recipe("mine", "torch", "all", "int8", refuse)
    plugin_recipes(mine)
    with pytest.raises(ScenarioError, match=r"^no kernel$"):
        mine.run(object())


def test_built_in_recipes_take_their_options():
    assert not [built_in.label for built_in in recipe._builtin() if recipe._unreachable_options(built_in)]
    assert pytorch.load  # the backend that applies those of torch
