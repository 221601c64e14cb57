"""Every experiment passes all options of backends and recipes, in the same way."""

from __future__ import annotations

import pytest

from experiments import backends, baseline, perplexity, precision, quantization
from llmtrack.engines.registry import backend_of
from llmtrack.engines.registry import backends as known
from llmtrack.errors import UsageError
from llmtrack.quantize.recipe import recipes
from llmtrack.spec.options import parameters
from llmtrack.spec.parameter import format_value


def all_of(configs):
    return [(parameter.name, parameter.default) for config in configs for parameter in parameters(config)]


def as_words(pairs):
    return " ".join(f"{name}={format_value(value)}" for name, value in pairs)


def last(experiment):
    return experiment.scenarios[-1].variant


@pytest.mark.parametrize("experiment", [backends, quantization], ids=lambda module: module.DECLARED.name)
@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe.label)
def test_a_recipe_accepts_all_of_its_options(experiment, recipe):
    options = all_of((backend_of(recipe.backend).options, *recipe.option_types))
    scenario = last(experiment.build(experiment.Config(recipes=(f"{recipe.label} {as_words(options)}".strip(),))))
    assert (scenario.backend, scenario.quantization) == (recipe.backend, recipe.name)
    assert dict(options).items() <= dict(scenario.options).items()


@pytest.mark.parametrize("experiment", [baseline, perplexity, precision], ids=lambda module: module.DECLARED.name)
@pytest.mark.parametrize("backend", known())
def test_a_backend_accepts_all_of_its_options(experiment, backend):
    options = all_of([backend_of(backend).options])
    scenario = last(experiment.build(experiment.Config(backend=f"{backend} {as_words(options)}".strip())))
    assert scenario.backend == backend
    assert dict(options).items() <= dict(scenario.options).items()


def test_variants_that_differ_in_options_have_separate_names():
    labels = ("onnx/int4-weight-only", "onnx/int4-weight-only head_bits=4", "onnx/float32 threads=2")
    experiment = quantization.build(quantization.Config(recipes=labels, head_bits=8))
    options_of = {scenario.name: dict(scenario.variant.options) for scenario in experiment.scenarios[1:]}
    assert {name: options.get("head_bits") for name, options in options_of.items()} == {
        "onnx-int4-weight-only": 8, "onnx-int4-weight-only-head_bits_4": 4, "onnx-float32-threads_2": None
    }  # fmt: skip
    assert options_of["onnx-float32-threads_2"] == {"threads": 2}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("onnx/int4-weight-only head_bits", "invalid option 'head_bits': write NAME=VALUE"),
        ("onnx/int8-weight-only head_bits=4", "with int8-weight-only takes no option 'head_bits'"),
        ("onnx/int4-weight-only head_bits=16", "head_bits 16 is not possible: use 4 or 8"),
        ("genai/int4 accuracy=4", "did you mean accuracy_level"),
    ],
)
@pytest.mark.parametrize("experiment", [backends, quantization], ids=lambda module: module.DECLARED.name)
def test_an_unknown_option_is_refused_before_anything_is_measured(experiment, label, message):
    with pytest.raises(UsageError, match=message):
        experiment.build(experiment.Config(recipes=(label,)))
