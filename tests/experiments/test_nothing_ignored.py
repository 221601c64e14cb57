"""Options without any effect are refused in one line, wherever they are set."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from rich.console import Console

from experiments import baseline, edge_prompts, perplexity, quantization, suite, tune
from llmtrack.cli import main
from llmtrack.errors import UsageError
from llmtrack.run.settings import ClusterOptions, RunOptions, Settings
from llmtrack.spec.options import parameters

CLUSTER = {"address": "local", "nodes": "each", "resources": "CPU=1"}


@pytest.mark.parametrize("name", CLUSTER)
@pytest.mark.parametrize("config", [RunOptions, baseline.Config, perplexity.Config, suite.Config])
def test_cluster_options_require_a_cluster(config, name):
    options = {name: CLUSTER[name]}
    with pytest.raises(UsageError, match=f"^{name} would change nothing: use executor=ray, or leave it out$"):
        config(**options)
    assert getattr(config(executor="ray", **options), name) == CLUSTER[name]


def test_tune_refuses_cluster_options():
    names = {parameter.name for parameter in parameters(tune.Config)}
    assert names.isdisjoint(parameter.name for parameter in parameters(ClusterOptions))
    with pytest.raises(UsageError, match="no executor 'ray': use one of process, inline"):
        tune.Config(executor="ray")


def test_dtype_must_be_among_dtypes():
    with pytest.raises(UsageError, match="dtype float16 would change nothing beside dtypes"):
        perplexity.Config(dtype="float16", dtypes=("float32", "bfloat16"))
    assert perplexity.Config(dtype="bfloat16", dtypes=("float32", "bfloat16")).dtype == "bfloat16"


@pytest.mark.parametrize(
    ("recipes", "options", "says"),
    [
        ("torch/bfloat16", {"provider": "CPUExecutionProvider"}, "provider"),
        ("torch/bfloat16", {"keep_quality": "5%"}, "keep_quality"),
        ("torch/bfloat16", {"log_model": True}, "log_model"),
        ("onnx/float32", {"block_size": 32}, "block_size"),
        ("onnx/int8-weight-only", {"calibration_tokens": 64}, "calibration_tokens"),
        ("onnx/int8-static", {"symmetric": False}, "symmetric"),
        ("onnx/int8-dynamic", {"calibration_method": "entropy"}, "calibration_method"),
        (
            "onnx/int4-hqq",
            {"calibration": "builtin", "corpus": "pydoc", "symmetric": False},
            "symmetric and calibration",
        ),
    ],
)
def test_an_option_without_effect_on_the_chosen_recipes_is_refused(recipes, options, says):
    with pytest.raises(UsageError, match=f"^{says} would change nothing: none of torch-float32, "):
        quantization.build(quantization.Config(recipes=(recipes,), **options))


@pytest.mark.parametrize(
    ("recipes", "options"),
    [
        ("onnx/float32", {"graph_optimization": "basic", "log_model": True}),
        ("onnx/int8-weight-only", {"block_size": 32, "symmetric": False}),
        ("onnx/int8-static", {"keep_quality": "none", "calibration_method": "entropy"}),
        ("torch/bfloat16", {"threads": 2}),
    ],
)
def test_an_option_of_one_chosen_recipe_is_accepted(recipes, options):
    built = quantization.build(quantization.Config(recipes=("torch/bfloat16", recipes), **options))
    names = {name for scenario in built.scenarios for name, _ in scenario.variant.options}
    assert set(options) - {"log_model"} <= names


@pytest.mark.parametrize(
    ("names", "settings", "says"),
    [
        (("perplexity",), {"max_new_tokens": 8}, "max_new_tokens 8 would change nothing in perplexity: leave"),
        (("training", "perplexity"), {"warmup": 3}, "warmup 3 would change nothing in training, perplexity"),
        (("precision",), {"dtype": "bfloat16"}, "dtype bfloat16 would change nothing in precision"),
        (("training",), {"model": "synthetic:tiny"}, "model synthetic:tiny would change nothing in training"),
    ],
)
def test_the_suite_refuses_a_setting_that_no_experiment_uses(names, settings, says):
    with pytest.raises(UsageError, match=says):
        suite.chosen_names(suite.Config(experiments=names, **settings))


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (("perplexity", "baseline"), {"max_new_tokens": 8}),
        (("backends",), {"threads": 2}),
        (("training", "baseline"), {"model": "synthetic:tiny", "quick": True}),
        (("precision", "perplexity"), {"dtype": "bfloat16"}),
    ],
)
def test_the_suite_accepts_a_setting_that_one_experiment_uses(names, settings):
    assert suite.chosen_names(suite.Config(experiments=names, **settings)) == names


def test_long_tokens_requires_a_long_prompt():
    with pytest.raises(UsageError, match="long_tokens would change nothing"):
        edge_prompts.build(edge_prompts.Config(prompts=("plain", "emoji_combining"), long_tokens=64))
    built = edge_prompts.build(edge_prompts.Config(prompts=("plain", "very_long"), long_tokens=64))
    assert built.scenarios[1].task.max_prompt_tokens == 64


def test_every_setting_of_the_suite_is_used_by_some_experiment():
    accepted = {parameter.name for name in suite.NAMES for parameter in parameters(suite.DECLARED_BY_NAME[name].config)}
    assert {parameter.name for parameter in parameters(Settings)} <= accepted


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("doctor", "--tracking-uri", "sqlite:///x.db"), "--tracking-uri says which store to repair"),
        (("doctor", "--repair", "--format", "json"), "--repair prints one line"),
        (("run", "baseline", "-P", "warmup=1", "-P", "warmup=2"), "warmup is given twice"),
        (("generate", "Hi", "--option", "threads=1", "--option", "threads=2"), "threads is given twice"),
        (("runs", "--tag", "a=1", "--tag", "a=2"), "a is given twice"),
    ],
)
def test_a_command_refuses_settings_without_effect(words, says):
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert says in done.output


@pytest.mark.parametrize("start", [suite.run, lambda config: suite.perform(config, Console())])
@pytest.mark.parametrize("settings", [
    {"experiments": ("baseline",), "focus": "quantization"},
    {"experiments": ("perplexity",), "max_new_tokens": 8},
])  # fmt: skip
def test_a_suite_refuses_its_settings_before_workers_start(monkeypatch, start, settings):
    for name in ("open_executor", "open_executors"):
        monkeypatch.setattr(suite, name, lambda config: pytest.fail("a worker was started"))
    with pytest.raises(UsageError):
        start(suite.Config(**settings))
