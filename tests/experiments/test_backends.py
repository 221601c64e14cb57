"""The backends experiment: its scenarios, and its reading and plots for artificial runs."""

from __future__ import annotations

import pytest

from experiments import backends, suite
from experiments.backends import Config, build, everything, has_alternatives, plots, reading
from llmtrack.errors import UsageError
from llmtrack.host.packages import RUNTIMES
from tests.experiments.installed import pretend
from tests.report.artificial_runs import interval, make_runs, run


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these backends are installed."""

    def say(*names):
        there = {"torch", *names}
        pretend(monkeypatch, backends, lambda backend, recipe: backend in there)
        monkeypatch.setattr(backends, "missing_modules", lambda backend: [] if backend in there else ["it"])

    return say


def test_all_means_what_is_installed(installed):
    installed()
    assert set(everything()) == {"torch/float32", "torch/bfloat16"}
    assert not has_alternatives()
    installed("genai", "openvino")
    assert has_alternatives()
    there = set(everything())
    assert {f"{name}/{recipe}" for name in ("genai", "openvino") for recipe in ("float32", "int8", "int4")} <= there
    assert not [label for label in there if label.startswith("onnx/")]


def test_the_suite_includes_it_if_there_are_backends_to_compare(installed):
    installed("onnx")
    assert "backends" in suite.chosen_names(suite.Config())
    assert "backends" not in suite.chosen_names(suite.Config(quick=True))
    installed()
    assert "backends" not in suite.chosen_names(suite.Config())
    assert suite.chosen_names(suite.Config(experiments=("backends",))) == ("backends",)


def test_each_recipe_is_measured_in_every_shape_and_scored_once_per_number_of_threads():
    experiment = build(Config(recipes=("genai/int4",), threads=(1, 2), lengths=(64, 256), sizes=(1, 4)))
    cells = [
        (scenario.variant.option("threads", 0), scenario.task.prompt_tokens, len(scenario.task.prompts))
        for scenario in experiment.scenarios
        if scenario.variant.backend == "genai"
    ]
    assert cells == [(1, 64, 1), (1, 256, 1), (1, 64, 4), (2, 64, 1), (2, 256, 1), (2, 64, 4)]
    scored = [scenario.name for scenario in experiment.scenarios if scenario.quality]
    assert scored == [
        "torch-float32-prompt-256-threads-1",
        "torch-float32-prompt-256-threads-2",
        "genai-int4-prompt-256-threads-1",
        "genai-int4-prompt-256-threads-2",
    ]
    judged = {scenario.quality for scenario in experiment.scenarios if scenario.quality}
    assert len(judged) == 1, "all by the same text and the same reference"
    assert judged.pop().reference == experiment.scenarios[0].variant


def test_each_shape_has_one_baseline_by_pytorch_at_the_first_number_of_threads():
    experiment = build(Config(recipes=("openvino/int8",), threads=(2, 1)))
    assert [scenario.name for scenario in experiment.scenarios if scenario.baseline] == [
        "torch-float32-prompt-64-threads-2",
        "torch-float32-prompt-256-threads-2",
        "torch-float32-prompt-64-batch-4-threads-2",
    ]


def test_rows_of_a_batch_are_of_one_length():
    """Not every runtime supports unequal lengths."""
    tasks = {scenario.task for scenario in build(Config(recipes=("genai/int8",))).scenarios}
    assert all(len(set(task.prompts)) == 1 and task.batch_size == len(task.prompts) for task in tasks)


def test_the_suites_number_of_threads_is_a_list_of_one():
    (experiment,) = suite.experiments_of(["backends"], suite.Config(threads=2))
    assert {scenario.variant.option("threads", 0) for scenario in experiment.scenarios} == {2}
    (experiment,) = suite.experiments_of(["backends"], suite.Config())
    assert {scenario.variant.options for scenario in experiment.scenarios} == {()}


@pytest.mark.parametrize("label", ["genai", "genai/int3", "/int8", "openvino/int8@"])
def test_an_unknown_recipe_is_refused(label):
    with pytest.raises(UsageError):
        build(Config(recipes=(label,)))


def measured(name, threads, prefill, decode, perplexity, **values):
    return run(
        f"{name}-threads-{threads}",
        experiment="backends",
        study_id="b-1",
        threads=threads,
        perplexity=perplexity,
        corpus="builtin",
        **interval("prefill_tokens_per_sec", prefill, 0.98 * prefill, 1.02 * prefill),
        **interval("decode_tokens_per_sec", decode, 0.98 * decode, 1.02 * decode),
        **values,
    )


@pytest.fixture
def runs():
    int8 = {"backend": "genai", "quantization": "int8", "dtype": "int8 weights (float32)"}
    int4 = {"backend": "openvino", "quantization": "int4", "dtype": "int4 weights (float32)"}
    silent = {"backend": "theirs", "dtype": "q5"}
    return make_runs(
        measured("torch-float32", 1, 365.0, 16.8, 20.0, baseline=True),
        measured("torch-float32", 2, 528.0, 16.9, 20.0),
        measured("genai-int8", 1, 417.0, 68.0, 20.1, **int8),
        measured("genai-int8", 2, 819.0, 109.0, 20.1, **int8),
        measured("openvino-int4", 1, 300.0, 75.0, 24.0, **int4),
        measured("openvino-int4", 2, 500.0, 140.0, 24.0, **int4),
        measured("silent", 1, 200.0, 10.0, None, **silent),
        measured("silent", 2, 200.0, 10.0, None, **silent),
    )


@pytest.mark.slow(1)
def test_the_reading_names_the_best_at_each_number_of_threads(runs, installed):
    installed("onnx", "genai", "openvino")
    text = "\n".join(reading(runs))
    assert "with 1 threads" not in text
    assert "1 thread, PyTorch in float32: prefill 365 and decode 16.8 tokens/s, perplexity 20.000 (builtin)." in text
    assert "2 threads, PyTorch in float32: prefill 528 and decode 16.9 tokens/s" in text
    assert "genai-int8-threads-1, 4.0x (3.9 to 4.2) the baseline's decode speed at +0.5 % perplexity" in text
    assert "genai-int8-threads-2, 6.4x (6.2 to 6.7) the baseline's decode speed at +0.5 % perplexity" in text
    assert "Do not use openvino-int4-threads-1: its perplexity is 1.20x the baseline's." in text
    assert text.count("was timed and not scored") == 1, "once for a backend"
    assert "silent-threads-1 was timed and not scored." in text
    for absent in set(RUNTIMES) - {"genai", "openvino"}:
        assert f'pip install "llmtrack[{absent}]"' in text


@pytest.mark.slow(1)
def test_the_front_is_drawn_for_each_number_of_threads(runs):
    assert set(plots(runs, lambda run_id, name: [])) == {
        f"{phase}_against_perplexity_{threads}_threads" for phase in ("decode", "prefill") for threads in (1, 2)
    }


def test_without_measured_runs_the_reading_says_so_and_nothing_is_drawn(installed):
    installed("genai")
    failed = make_runs(run("torch-float32", experiment="backends", status="FAILED", failure="error", reason="no"))
    assert "Nothing was both timed and scored" in reading(failed)[0]
    assert plots(failed, lambda run_id, name: []) == {}
