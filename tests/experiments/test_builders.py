"""What each experiment asks to be measured."""

from __future__ import annotations

import click
import pytest

from experiments import baseline, perplexity, precision, prompt_length, suite
from llmtrack.run.settings import CommaList, Dtype, Settings, optional
from llmtrack.scenario import DEFAULT_MODEL, GenerateTask, PerplexityTask, RepeatPolicy, Variant, workload_id

SETTINGS = Settings(model="m", revision="r", device="cpu", max_new_tokens=7, warmup=2, min_repeats=3)


@pytest.mark.parametrize("name", suite.BUILDERS)
def test_every_experiment(name):
    experiment = suite.BUILDERS[name](SETTINGS)
    assert experiment.name == name
    assert experiment.question.endswith("?")
    names = [scenario.name for scenario in experiment.scenarios]
    assert len(set(names)) == len(names)
    assert experiment.scenarios[0].baseline
    bases = [workload_id(scenario.task) for scenario in experiment.scenarios if scenario.baseline]
    assert len(set(bases)) == len(bases), "what is compared has one baseline"
    for scenario in experiment.scenarios:
        assert (scenario.variant.model, scenario.variant.revision, scenario.variant.device) == (
            "m",
            "r",
            "cpu",
        )
        if isinstance(scenario.task, GenerateTask):
            if name != "cache_padding":  # which compares numbers of new tokens of its own
                assert scenario.task.max_new_tokens == 7
            assert scenario.task.ignore_eos
            assert scenario.repeat == RepeatPolicy(2, 3, 1.0, 60.0)
    assert experiment.settings["max_new_tokens"] == 7
    assert all(isinstance(value, (str, int, float, bool)) for value in experiment.settings.values())


def test_arms_of_a_comparison_differ_only_in_what_is_compared():
    for scenario in precision.build(SETTINGS).scenarios:
        assert scenario.task == precision.build(SETTINGS).scenarios[0].task
    tasks = [scenario.task for scenario in prompt_length.build(SETTINGS).scenarios]
    assert len({task.prompts for task in tasks}) == 1
    assert len({scenario.variant for scenario in prompt_length.build(SETTINGS).scenarios}) == 1


def test_baseline():
    (scenario,) = baseline.build(SETTINGS, "some text").scenarios
    assert (scenario.name, scenario.task.prompts) == ("baseline", ("some text",))


def test_prompt_length():
    experiment = prompt_length.build(SETTINGS, (64, 16))
    assert [(each.name, each.task.prompt_tokens, each.baseline) for each in experiment.scenarios] == [
        ("prompt_64", 64, True),
        ("prompt_16", 16, False),
    ]
    assert experiment.settings["lengths"] == "64,16"


def test_precision():
    experiment = precision.build(SETTINGS, ("bfloat16", "float32"))
    assert [(each.name, each.variant.dtype, each.baseline) for each in experiment.scenarios] == [
        ("bfloat16", "bfloat16", True),
        ("float32", "float32", False),
    ]
    assert [each.name for each in precision.build(SETTINGS).scenarios] == ["float32", "float16", "bfloat16"]


def test_perplexity():
    task = PerplexityTask(corpus="c.txt", max_length=100, batch_size=2)
    (one,) = perplexity.build(SETTINGS, task).scenarios
    assert (one.name, one.variant.dtype, one.task) == ("perplexity_float32", "float32", task)
    experiment = perplexity.build(SETTINGS, task, ("float32", "bfloat16"))
    assert [each.name for each in experiment.scenarios] == ["perplexity_float32", "perplexity_bfloat16"]
    expected = {"corpus": "c.txt", "max_length": 100, "batch_size": 2, "dtypes": "float32,bfloat16"}
    assert {name: experiment.settings[name] for name in expected} == expected


def test_credentials_in_a_tracking_uri_are_not_tracked():
    settings = Settings(tracking_uri="http://user:secret@host")
    assert "secret" not in str(settings.tracked(more=1))


def test_settings_by_default():
    assert Settings().variant() == Variant()
    assert Settings().model == DEFAULT_MODEL
    assert Settings().repeat() == RepeatPolicy()
    assert Settings(revision="none").variant().revision is None
    assert Settings().variant(dtype="bfloat16").dtype == "bfloat16"


@pytest.mark.parametrize(("text", "expected"), [("none", None), ("None ", None), ("", None), ("x", "x")])
def test_none_is_not_given(text, expected):
    assert optional(text) == expected


def test_comma_lists():
    numbers = CommaList(click.IntRange(min=1))
    assert numbers("16, 64,16,") == (16, 64)
    assert CommaList(Dtype())("fp32,FP16,float32") == ("float32", "float16")
    for bad in ("", " , ", "0", "16;64", "a"):
        with pytest.raises(click.BadParameter):
            numbers(bad)
