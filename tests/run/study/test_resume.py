"""Resuming a study: measured scenarios are taken over, all others are measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mlflow import MlflowClient

from experiments import perplexity, prompt_length
from llmtrack.engines.registry import load_engine
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.models import hub
from llmtrack.quality.corpora import load_corpus
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import Settings
from llmtrack.run.study import resume
from llmtrack.run.study.study import run_study
from llmtrack.spec.options import config_from
from llmtrack.spec.outcome import CUT_SHORT, REPLACED
from llmtrack.spec.scenario import QualityCheck
from llmtrack.spec.task import TrainTask
from llmtrack.tracked.frames import lines_of
from llmtrack.tracked.run import REFERENCE_DIGESTS, Run
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import runs
from llmtrack.worker.identity import identify
from tests.engines.models import small

pytestmark = pytest.mark.usefixtures("_known_ceilings")

SETTINGS = Settings(
    model="synthetic:tiny", device="cpu", max_new_tokens=5, min_repeats=2, min_seconds=0.0, max_seconds=0.11
)


class Counting(InlineExecutor):
    """Records which scenarios it measures."""

    def __init__(self, context_length: int | None = None, threads: str = "1") -> None:
        clock = FakeClock()
        super().__init__(lambda v: ScriptedEngine(clock, Script(0.030, 0.005), context_length=context_length), clock)
        self.names: list[str] = []
        self.threads = threads

    def machine(self):
        return {**super().machine(), "threads": self.threads}

    def run(self, scenarios, emit):
        self.names += [scenario.name for scenario in scenarios]
        super().run(scenarios, emit)


def study(tracker, console, experiment, resume=True, **options):
    executor = Counting(**options)
    result = run_study(experiment, tracker=tracker, executor=executor, console=console, resume=resume)
    return executor.names, result


def lengths(*values: int, **changes: object):
    return prompt_length.build(config_from(prompt_length.Config, replace(SETTINGS, **changes), lengths=values))


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_unreported")
@pytest.mark.parametrize(
    "warning",
    [f"{REPLACED}, and the newer run of the study is its baseline", f"measured in 1 of 2 {CUT_SHORT}"],
    ids=["once more", "in all rounds"],
)
def test_an_incomplete_measurement_is_resumed(tracker, console, uri, warning):
    _, first = study(tracker, console, lengths(4))
    (run_id,) = (run.run_id for run in first.tracked)
    client = MlflowClient(tracking_uri=uri)
    client.set_tag(run_id, "llmtrack.warnings", f"noisy\n{warning}")
    names, _ = study(tracker, console, lengths(4))
    assert names == ["prompt_4"]
    names, _ = study(tracker, console, lengths(4))
    assert names == []


@pytest.mark.slow(4)
def test_only_missing_scenarios_are_measured(tracker, console, uri):
    names, first = study(tracker, console, lengths(4))
    assert names == ["prompt_4"]
    names, second = study(tracker, console, lengths(4, 8))
    assert names == ["prompt_8"]
    names, third = study(tracker, console, lengths(4, 8, 12))
    assert names == ["prompt_12"]
    assert "2 of 3 scenarios are measured already and skipped" in console.file.getvalue()
    assert third.tracked.scenarios == ["prompt_4", "prompt_8", "prompt_12"]
    assert {run.study_id for run in third.tracked} == {third.study.study_id}
    assert "From 4 to 12 prompt tokens" in third.reading[0]
    # Nothing was tracked twice.
    assert sorted(runs(tracking_uri=uri)["scenario"]) == ["prompt_12", "prompt_4", "prompt_8"]
    for result, names in ((first, [4]), (second, [4, 8]), (third, [4, 8, 12])):
        tracked = runs(study=result.study.study_id, tracking_uri=uri)
        assert sorted(tracked["scenario"]) == sorted(f"prompt_{length}" for length in names)
        assert set(tracked["study_id"]) == {result.study.study_id}
        assert list(tracked[tracked["baseline"]]["scenario"]) == ["prompt_4"], "its baseline stays the baseline"
    assert len(runs(study="latest", tracking_uri=uri)) == 3
    third_id = third.study.study_id
    assert len(runs(study=third_id, status="FAILED", tracking_uri=uri)) == 0
    assert list(runs(study=third_id, search="prompt_4", tracking_uri=uri)["scenario"]) == ["prompt_4"]


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_unreported")
def test_a_failed_scenario_is_measured_again(tracker, console):
    study(tracker, console, lengths(4, 20), context_length=16)
    names, result = study(tracker, console, lengths(4, 20))
    assert names == ["prompt_20"]
    assert (result.measured, result.exit_code) == (1, 0)


@pytest.mark.slow(4)
@pytest.mark.usefixtures("_unreported")
def test_other_requests_or_environments_are_measured_again(tracker, console, uri):
    study(tracker, console, lengths(4))
    assert study(tracker, console, lengths(4))[0] == []
    for changes in ({"dtype": "bfloat16"}, {"max_new_tokens": 6}, {"min_repeats": 3}, {"model": "synthetic:tiny-gpt2"}):
        assert study(tracker, console, lengths(4, **changes))[0] == ["prompt_4"], changes
    assert study(tracker, console, lengths(4), threads="2")[0] == ["prompt_4"], "another machine"
    before = len(runs(tracking_uri=uri))
    assert study(tracker, console, lengths(4), resume=False)[0] == ["prompt_4"]
    assert len(runs(tracking_uri=uri)) == before + 1


@pytest.mark.slow(3)
@pytest.mark.usefixtures("_unreported")
def test_another_corpus_of_the_same_name_is_scored_again(tracker, console, tmp_path):
    corpus = tmp_path / "corpus.txt"

    def score():
        config = config_from(perplexity.Config, SETTINGS, corpus=str(corpus), max_length=64)
        return study(tracker, console, perplexity.build(config))[0]

    corpus.write_text("one text", encoding="utf-8")
    assert score() == ["perplexity_float32"]
    assert score() == []
    corpus.write_text("another text", encoding="utf-8")
    assert score() == ["perplexity_float32"]


class Real(InlineExecutor):
    """Loads real models, and records which scenarios it measures."""

    names: list[str]

    def run(self, scenarios, emit):
        self.names = [scenario.name for scenario in scenarios]
        super().run(scenarios, emit)


def measured(tracker, console, experiment):
    executor = Real()
    executor.names = []
    run_study(experiment, tracker=tracker, executor=executor, console=console, resume=True)
    return executor.names


def save(folder, seed=0, **settings):
    """Save a small model and its tokenizer."""
    engine = small("llama", seed, **settings)
    engine.model.save_pretrained(folder)
    engine.tokenizer.save_pretrained(folder)


@pytest.mark.slow(4)
@pytest.mark.usefixtures("_unreported")
def test_another_model_of_the_same_folder_is_measured_again(tracker, console, tmp_path):
    def timed():
        return measured(tracker, console, lengths(4, model=str(tmp_path)))

    save(tmp_path)
    assert timed() == ["prompt_4"]
    assert timed() == []
    save(tmp_path, seed=1)
    assert timed() == ["prompt_4"], "other weights"
    assert timed() == []
    save(tmp_path, seed=1, rope_theta=50.0)
    assert timed() == ["prompt_4"], "the same weights and another config"
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text().replace("<|reserved_300|>", "<|else|>"))
    assert timed() == ["prompt_4"], "another tokenizer"
    save(tmp_path)
    assert timed() == [], "the first model again: its run is an older one"


def test_a_synthetic_model_and_what_is_trained_from_scratch_count_as_finished(tmp_path):
    scenario = lengths(4).scenarios[0]
    result = identify(scenario)
    assert result["weights_digest"].startswith("synthetic:")
    assert result == dict(load_engine("synthetic:tiny", device="cpu").info.tags)
    trained = replace(scenario, task=TrainTask(output=str(tmp_path)))
    assert identify(trained) == {}


@pytest.mark.parametrize("name", ["weights_digest", "config_digest", "tokenizer_digest"])
def test_another_reference_of_the_same_folder_is_compared_with_anew(name, tmp_path):
    save(tmp_path)
    scenario = lengths(4).scenarios[0]
    reference = replace(scenario.variant, model=str(tmp_path))
    result = identify(replace(scenario, quality=QualityCheck(reference=reference)))
    assert {tag for tag in result if tag.startswith("reference_")} == set(REFERENCE_DIGESTS)
    run = Run("id", environment=result)
    assert resume._measured_the_same(run, result, "")
    assert not resume._measured_the_same(run, {**result, f"reference_{name}": "another"}, "")
    itself = replace(scenario, quality=QualityCheck(reference=scenario.variant))
    assert identify(itself) == identify(scenario), "the reference is not compared with itself"
    gone = replace(scenario, quality=QualityCheck(reference=replace(reference, model=f"{tmp_path}/gone")))
    assert not resume._measured_the_same(run, identify(gone), "")


def test_a_hub_model_is_identified_by_its_commit(monkeypatch, tmp_path):
    save(tmp_path)
    commits = iter(("a" * 40, "b" * 40))
    monkeypatch.setattr(hub, "snapshot", lambda repo, revision: (tmp_path, next(commits)))
    scenario = lengths(4, model="some/model").scenarios[0]
    first, second = identify(scenario), identify(scenario)
    assert (first["revision"], second["revision"]) == ("a" * 40, "b" * 40)
    run = Run("id", params={"revision": "a" * 40}, environment=first)
    assert resume._measured_the_same(run, first, "")
    assert not resume._measured_the_same(run, second, "")
    facts = {name: fact for name, fact in first.items() if name != "config_digest"}
    assert not resume._measured_the_same(replace(run, environment=facts), first, ""), (
        "tracked before there was such a digest"
    )


def test_a_missing_model_matches_no_run(tmp_path):
    scenario = lengths(4, model=f"{tmp_path}/gone,{tmp_path}/gone_too").scenarios[0]
    assert not resume._measured_the_same(
        Run("id", environment={"weights_digest": "safetensors:0"}), identify(scenario), ""
    )


def test_another_calibration_text_is_measured_again(tmp_path):
    text = tmp_path / "calibration.txt"
    text.write_text("one text", encoding="utf-8")
    plain = lengths(4).scenarios[0]
    calibrated = replace(plain, variant=replace(plain.variant, options=(("calibration", str(text)),)))
    params = {"calibration": "calibration.txt", "calibration_digest": load_corpus(str(text)).digest}
    run = Run("id", params=params)
    assert resume._calibrated_the_same(run, calibrated)
    text.write_text("another text", encoding="utf-8")
    assert not resume._calibrated_the_same(run, calibrated)
    assert resume._calibrated_the_same(Run("id"), plain)


@pytest.mark.parametrize(
    ("warning", "taken_over"),
    [
        ("", ["r1"]),
        ("noisy", ["r1"]),
        (f"{REPLACED}, and the newer run of the study is its baseline", ["r0"]),
        (f"measured in 1 of 2 {CUT_SHORT}", ["r0"]),
    ],
)
def test_an_incomplete_run_is_skipped(monkeypatch, warning, taken_over):
    (scenario,) = lengths(4).scenarios
    ids = {"scenario_id": scenario.scenario_id, "workload_id": resume._workload_id(scenario), "environment_id": "here"}
    newest_first = Runs([Run("r1", warnings=lines_of(warning), **ids), Run("r0", **ids)])
    monkeypatch.setattr(resume, "tracked_runs", lambda **filters: newest_first)
    result = resume.finished_runs([scenario], "here", lambda scenario: {})
    assert [run.run_id for run in result] == taken_over
