"""Scenarios of each experiment."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments import (
    backends,
    baseline,
    perplexity,
    precision,
    prompt_length,
    quantization,
    suite,
    training,
)
from llmtrack.decide.significance import enough_repeats
from llmtrack.errors import UsageError
from llmtrack.run.settings import Settings
from llmtrack.spec.options import config_from, parameters, tracked_settings
from llmtrack.spec.scenario import DEFAULT_MODEL, Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, TrainTask, workload_id
from tests.experiments.installed import pretend

SETTINGS = Settings(model="m", revision="r", device="cpu", max_new_tokens=7, warmup=2, min_repeats=3)
# Experiments that compare numbers of new tokens of their own.
OWN_LENGTHS = {"cache_padding"}


@pytest.mark.parametrize("name", suite.NAMES)
def test_every_experiment(name):
    (experiment,) = suite.experiments_of([name], config_from(suite.Config, SETTINGS))
    assert experiment.name == name
    assert experiment.question.endswith("?")
    names = [scenario.name for scenario in experiment.scenarios]
    assert len(set(names)) == len(names)
    assert experiment.scenarios[0].baseline
    bases = [workload_id(scenario.task) for scenario in experiment.scenarios if scenario.baseline]
    assert len(set(bases)) == len(bases), "what is compared has one baseline"
    for scenario in experiment.scenarios:
        if name == "training":  # from scratch, whatever the suite's model is
            assert (scenario.variant.model, scenario.variant.device) == ("synthetic:1m", "cpu")
            continue
        assert (scenario.variant.model, scenario.variant.revision, scenario.variant.device) == (
            "m",
            "r",
            "cpu",
        )
        if isinstance(scenario.task, GenerateTask):
            if name not in OWN_LENGTHS:
                assert scenario.task.max_new_tokens == 7, "or it belongs to OWN_LENGTHS"
            assert scenario.task.ignore_eos
            assert scenario.repeat == RepeatPolicy(2, 3, 1.0, 60.0)
    assert experiment.settings.get("max_new_tokens", 7) == 7, "of those that generate"
    assert all(isinstance(value, (str, int, float, bool)) for value in experiment.settings.values())


def _but_for_folders(scenario: Scenario) -> Scenario:
    """Remove the training folder, and the quick suite's maximum number of repeats."""
    task = replace(scenario.task, output="") if isinstance(scenario.task, TrainTask) else scenario.task
    return replace(scenario, task=task, repeat=replace(scenario.repeat, max_repeats=0))


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", suite.NAMES)
def test_the_recorded_request_reproduces_the_experiment(name, quick):
    """Commands that measure more are built from it: with the same device, dtype, lengths and all else."""
    (experiment,) = suite.experiments_of([name], config_from(suite.Config, SETTINGS, quick=quick, threads=2))
    declared = suite.DECLARED_BY_NAME[name]
    own = {parameter.name: parameter for parameter in parameters(declared.config)}
    rebuilt = declared.experiment(
        declared.config(**{key: own[key].parse(text) for key, text in experiment.asked.items()})
    )
    assert rebuilt.asked == experiment.asked
    assert rebuilt.settings == experiment.settings
    assert list(map(_but_for_folders, experiment.scenarios)) == list(map(_but_for_folders, rebuilt.scenarios))
    assert {"model", "revision", "device", "threads"} - {*experiment.asked} <= {"model", "revision"}


@pytest.mark.parametrize(
    "there",
    [
        lambda backend, recipe: (backend, recipe) == ("torch", "none"),
        lambda backend, recipe: backend == "torch",
        lambda backend, recipe: backend in ("torch", "onnx") and recipe == "none",
        lambda backend, recipe: backend != "onnx",
    ],
    ids=["torch alone", "torch and torchao", "onnx without recipes", "all but onnx"],
)
@pytest.mark.parametrize("quick", [False, True])
def test_the_default_request_is_accepted_whatever_is_installed(there, quick, monkeypatch):
    for experiment in (quantization, backends):
        pretend(monkeypatch, experiment, there)
    for focus in suite.FOCUSES:
        assert suite.experiments_of(suite.FOCUSES[focus], suite.Config(focus=focus, quick=quick))
    for name in suite.NAMES:
        assert suite.experiments_of([name], suite.Config(quick=quick))


@pytest.mark.parametrize("name", suite.NAMES)
def test_default_repeats_can_be_significant_for_each_arm(name, monkeypatch):
    for module in (quantization, backends):
        pretend(monkeypatch, module, lambda backend, recipe: True)
    declared = suite.DECLARED_BY_NAME[name]
    built = [declared.build(declared.config())]
    for quick in (False, True):
        built += suite.experiments_of([name], suite.Config(quick=quick))
    for experiment in built:
        timed = [scenario for scenario in experiment.scenarios if isinstance(scenario.task, GenerateTask)]
        needed = enough_repeats(len(timed) - 1) if timed else 0
        assert all(scenario.repeat.min_repeats >= needed for scenario in timed), f"{len(timed)} arms need {needed}"


def test_the_suite_passes_on_the_requested_repeats():
    (edge_prompts,) = suite.experiments_of(["edge_prompts"], suite.Config(min_repeats=9))
    assert {scenario.repeat.min_repeats for scenario in edge_prompts.scenarios} == {9}


def test_arms_of_a_comparison_differ_only_in_what_is_compared():
    scenarios = precision.build(precision.Config()).scenarios
    assert len({scenario.task for scenario in scenarios}) == 1
    scenarios = prompt_length.build(prompt_length.Config()).scenarios
    assert len({scenario.task.prompts for scenario in scenarios}) == 1
    assert len({scenario.variant for scenario in scenarios}) == 1


def test_baseline():
    (scenario,) = baseline.build(baseline.Config(prompt="some text")).scenarios
    assert (scenario.name, scenario.task.prompts) == ("baseline", ("some text",))


def test_prompt_length():
    experiment = prompt_length.build(prompt_length.Config(lengths=(64, 16)))
    assert [(scenario.name, scenario.task.prompt_tokens, scenario.baseline) for scenario in experiment.scenarios] == [
        ("prompt_64", 64, True),
        ("prompt_16", 16, False),
    ]
    assert experiment.settings["lengths"] == "64,16"


def test_precision():
    experiment = precision.build(precision.Config(dtypes=("bfloat16", "float32")))
    assert [(scenario.name, scenario.variant.dtype, scenario.baseline) for scenario in experiment.scenarios] == [
        ("bfloat16", "bfloat16", True),
        ("float32", "float32", False),
    ]
    assert [scenario.name for scenario in precision.build(precision.Config()).scenarios] == [
        "float32",
        "float16",
        "bfloat16",
    ]


def test_perplexity():
    task = PerplexityTask(corpus="c.txt", max_length=100, batch_size=2)
    config = config_from(perplexity.Config, task)
    (one,) = perplexity.build(config).scenarios
    assert (one.name, one.variant.dtype, one.task) == ("perplexity_float32", "float32", task)
    experiment = perplexity.build(replace(config, dtypes=("float32", "bfloat16")))
    assert [scenario.name for scenario in experiment.scenarios] == ["perplexity_float32", "perplexity_bfloat16"]
    expected = {"corpus": "c.txt", "max_length": 100, "batch_size": 2, "dtypes": "float32,bfloat16"}
    assert {name: experiment.settings[name] for name in expected} == expected


def test_credentials_in_a_tracking_uri_are_not_tracked():
    settings = Settings(tracking_uri="http://user:secret@host")
    assert "secret" not in str(tracked_settings(settings, more=1))


def test_settings_by_default():
    assert Settings().variant() == Variant()
    assert Settings().model == DEFAULT_MODEL
    assert Settings().repeat() == RepeatPolicy()
    assert Settings().variant(dtype="bfloat16").dtype == "bfloat16"


def test_training_finds_its_folder_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = training.Config(model="synthetic:tiny", steps=5)

    def output(config):
        (scenario,) = training.build(config).scenarios
        return Path(scenario.task.output)

    first = output(config)
    assert first.is_relative_to(tmp_path / ".llmtrack" / "training")
    assert output(config) != first, "what is not to be resumed begins in a folder of its own"
    (first / "checkpoint-000002").mkdir(parents=True)
    resumed = replace(config, resume=True)
    assert output(resumed) == first
    assert output(replace(resumed, steps=6)) != first, "another training"
    named = replace(config, output=str(first))
    assert output(replace(named, resume=True)) == first
    with pytest.raises(UsageError, match="add resume=true"):
        output(named)


def test_a_trainings_id_depends_on_its_settings_and_not_on_its_folder():
    one, other = (
        Scenario("t", Variant("synthetic:tiny"), TrainTask(output=place, explain=explain))
        for place, explain in (("here", True), ("there", False))
    )
    assert one.scenario_id == other.scenario_id
    assert one.scenario_id != replace(one, task=replace(one.task, seed=1)).scenario_id
    # Models that were trained differently are compared on the same held-out text.
    assert workload_id(one.task, "c") == workload_id(replace(one.task, steps=7), "c")
    assert workload_id(one.task, "c") != workload_id(replace(one.task, sequence_length=7), "c")


@pytest.mark.parametrize(
    ("model", "start", "learning_rate", "rate"),
    [
        ("synthetic:1m", "auto", 0.0, training.SCRATCH_RATE),
        ("packaged:smollm2", "auto", 0.0, training.WEIGHTS_RATE),
        ("synthetic:1m", "weights", 0.0, training.WEIGHTS_RATE),
        ("packaged:smollm2", "auto", 0.5, 0.5),
    ],
)
def test_the_default_learning_rate_depends_on_the_initial_weights(model, start, learning_rate, rate):
    config = training.Config(model=model, start=start, learning_rate=learning_rate)
    assert training.task_of(config).learning_rate == rate


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": 0}, "steps 0 is not possible"),
        ({"window_stride": 300}, "window_stride 300 is not possible"),
        ({"validation_share": 1.0}, "validation_share 1 is not possible"),
        ({"learning_rate": 0.0}, "learning_rate 0 is not possible"),
        ({"start": "middle"}, "no start 'middle'"),
        ({"validation_tokens": 1}, "max_tokens 1 is not possible"),
    ],
)
def test_an_impossible_training_is_refused(changes, says):
    with pytest.raises(UsageError, match=says):
        TrainTask(**changes)
