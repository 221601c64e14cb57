"""What a suite adds to its studies: a joint report, remarks, and a quick variant."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from experiments import perplexity, prompt_length
from experiments.suite import NAMES, Config, experiments_of, quick_remark, quicker
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import Settings
from llmtrack.run.suite import run_suite
from llmtrack.spec.options import config_from
from llmtrack.spec.task import GenerateTask

pytestmark = pytest.mark.usefixtures("_known_ceilings")

SETTINGS = Settings(
    model="synthetic:tiny", device="cpu", max_new_tokens=5, min_repeats=2, min_seconds=0.0, max_seconds=0.11
)


def suite(tracker, console, *experiments, context_length=None, remarks=(), resume=False):
    clock = FakeClock()
    script = Script(0.030, 0.005)
    return run_suite(
        experiments,
        question="All?",
        settings={"quick": bool(remarks)},
        tracker=tracker,
        executor=InlineExecutor(lambda v: ScriptedEngine(clock, script, context_length=context_length), clock),
        console=console,
        remarks=remarks,
        resume=resume,
    )


def artifact(uri, run_id, name, folder) -> str:
    return Path(MlflowClient(tracking_uri=uri).download_artifacts(run_id, name, str(folder))).read_text()


def names(uri, run_id, folder=None) -> set[str]:
    return {artifact.path for artifact in MlflowClient(tracking_uri=uri).list_artifacts(run_id, folder)}


@pytest.mark.slow(3)
def test_the_report_holds_every_study(tracker, uri, console, tmp_path):
    result = suite(
        tracker,
        console,
        prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=(4, 8))),
        perplexity.build(config_from(perplexity.Config, SETTINGS)),
        remarks=("Quick: <less>.",),
    )
    run_id = result.study.run_id
    printed = console.file.getvalue()
    assert "Plan: 2 experiments (prompt_length, perplexity), 3 scenarios. " in printed
    assert MlflowClient(tracking_uri=uri).get_run(run_id).data.metrics["scenarios_measured"] == 3
    report = artifact(uri, run_id, "report.html", tmp_path)
    assert report.count("data:image/png;base64,") == 3
    for text in (
        "Quick: &lt;less&gt;.",
        "Where the time goes: with 4 prompt tokens and 5 new ones the prefill is 60% of the call.",
        "What does a longer prompt cost?",
        "How well does the model predict a text?",
        "prefill 30 ms (60 %)",
        run_id,
        result.results["prompt_length"].study.run_id,
    ):
        assert text in report, text
    assert names(uri, run_id, "plots/prompt_length") == {
        "plots/prompt_length/latency.png",
        "plots/prompt_length/tokens_per_sec.png",
    }
    assert "Quick: <less>." in printed
    assert "[1/2] prompt_length: 0 of 3 scenarios done" in printed
    assert "[2/2] perplexity: 2 of 3 scenarios done" in printed
    assert "- Where the time goes: " in artifact(uri, run_id, "reading.md", tmp_path)
    assert MlflowClient(tracking_uri=uri).get_run(run_id).data.params["cfg.quick"] == "True"


@pytest.mark.slow(2)
def test_a_failed_scenario_is_in_the_report_with_its_reason(tracker, uri, console, tmp_path):
    result = suite(
        tracker,
        console,
        prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=(4, 100))),
        context_length=64,
    )
    report = artifact(uri, result.study.run_id, "report.html", tmp_path)
    assert "FAILED (too_long)" in report
    assert "prompt_100 failed: a prompt of 100 tokens" in report
    assert "1 of 2 scenarios failed: prompt_100 (prompt_length)." in report


def broken(*_):
    raise ZeroDivisionError("a <mistake>")


@pytest.mark.slow(4)
def test_an_experiment_whose_reading_breaks_has_its_table_and_its_reason(tracker, uri, console, tmp_path):
    mistaken = replace(prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=(4, 8))), reading=broken)
    result = suite(tracker, console, mistaken)
    assert result.exit_code == 1
    assert result.results["prompt_length"].problems == (
        "reading: experiment prompt_length cannot be used: reading raised ZeroDivisionError: a <mistake>: fix or update "
        "its package",
    )
    report = artifact(uri, result.study.run_id, "report.html", tmp_path)
    assert (
        "a part of its report could not be made: reading: experiment prompt_length cannot be used: reading raised ZeroDivisionError: a &lt;mistake&gt;"
        in report
    )
    assert report.count("prompt_8") >= 2
    assert "data:image/png" in report  # the plots are parts of their own


@pytest.mark.slow(6)
def test_a_resumed_suite_reports_what_was_measured_before(tracker, uri, console, tmp_path):
    suite(tracker, console, prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=(4,))))
    second = suite(
        tracker,
        console,
        prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=(4, 8))),
        perplexity.build(config_from(perplexity.Config, SETTINGS)),
        resume=True,
    )
    assert second.results["prompt_length"].measured == 1
    report = artifact(uri, second.study.run_id, "report.html", tmp_path)
    _, timing, quality, *_ = report[report.index("All runs") :].split("<h3>")
    assert timing.index("prompt_4") < timing.index("prompt_8")
    assert quality.startswith("quality</h3>")
    assert "perplexity_float32" in quality.split("</table>")[0]
    assert "perplexity_float32" not in timing


@pytest.mark.parametrize("name", NAMES)
def test_quick_reduces_the_amount_and_nothing_else(name):
    (full,) = experiments_of([name], Config())
    (quick,) = experiments_of([name], Config(quick=True))
    assert (quick.name, quick.question) == (full.name, full.question)
    assert len(quick.scenarios) <= len(full.scenarios)
    assert sum(scenario.baseline for scenario in quick.scenarios) >= 1
    for scenario in quick.scenarios:
        if isinstance(scenario.task, GenerateTask):
            assert scenario.repeat.max_repeats == scenario.repeat.min_repeats
            assert scenario.repeat.max_seconds <= 30
            assert scenario.task.max_new_tokens <= 16


def test_quick_keeps_all_prompts():
    (quick,) = experiments_of(["edge_prompts"], Config(quick=True))
    assert len(quick.scenarios) == 6


def test_quick_never_increases_a_setting():
    config = Config(max_new_tokens=4, warmup=0, min_repeats=1, min_seconds=0.0, max_seconds=2.0, dtype="bfloat16")
    assert quicker(config) == config
    assert quicker(Config()) == replace(Config(), max_new_tokens=16, min_seconds=0.0, max_seconds=30.0)


def test_every_precision_that_is_timed_is_scored():
    (scoring,) = experiments_of(["perplexity"], Config(dtype="bfloat16"))
    assert [scenario.variant.dtype for scenario in scoring.scenarios] == ["bfloat16", "float32", "float16"]
    assert [scenario.baseline for scenario in scoring.scenarios] == [True, False, False]


def test_the_remark_lists_the_quick_settings_of_each_experiment():
    remark = quick_remark(NAMES)
    for words in (
        "at most 16 new tokens, and the minimum number of repeats for significance; ",
        "prompt_length with lengths 16,128; ",
        "batching with sizes 1,4, max_new_tokens 8; ",
        "perplexity with max_length 64; ",
        "training with model synthetic:tiny, ",
    ):
        assert words in remark
    assert "batching" not in quick_remark(["prompt_length"])
    assert quick_remark(["baseline"]).startswith(
        "Quick: at most 16 new tokens, and the minimum number of repeats for significance. "
    )
