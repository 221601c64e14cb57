"""Scenarios shared by experiments of a suite are measured by each, reused, or pooled."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from experiments import prompt_length
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.verdicts import with_samples
from llmtrack.engines.scripted import FakeClock, ScriptedEngine
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import Settings
from llmtrack.run.study.suite_cache import MODES, POOL, REUSE, SuiteCache
from llmtrack.run.suite import run_suite
from llmtrack.spec.options import config_from
from llmtrack.spec.scenario import QualityCheck
from llmtrack.spec.task import RepeatPolicy, TrainTask
from llmtrack.tracking.read.query import tracked_runs
from tests.decide.scripted import noisy_scripts
from tests.tracking.samples import measurement, scenario

MACHINE = {"devices": "cpu", "bfloat16": "cpu"}
SETTINGS = Settings(model="synthetic:tiny", device="cpu", max_new_tokens=5, min_repeats=5, min_seconds=0.0)


def experiment(name, *lengths, **changes):
    config = config_from(prompt_length.Config, replace(SETTINGS, **changes), lengths=lengths)
    return replace(prompt_length.build(config), name=name, plots=lambda runs, series: {})


@pytest.mark.slow(4)
@pytest.mark.usefixtures("_known_ceilings")
@pytest.mark.parametrize("mode", MODES)
def test_a_shared_scenario_is_measured_twice_reused_or_pooled(mode, tracker, uri, console):
    clock, calls = FakeClock(), []

    class Engine(ScriptedEngine):
        def generate(self, request, on_step):
            calls.append(request.padded_length)
            return super().generate(request, on_step)

    scripts = noisy_scripts(1)
    result = run_suite(
        (experiment("one", 4, 8), experiment("two", 4, 16, min_repeats=7)),
        question="All?",
        settings={},
        tracker=tracker,
        executor=InlineExecutor(lambda variant: Engine(clock, *scripts), clock),
        console=console,
        same=mode,
    )
    assert result.exit_code == 0
    tracked = tracked_runs(tracking_uri=uri)
    (both,) = (run for run in result.results["two"].tracked if run.scenario == "prompt_4")
    count = both.spread("tokens_per_sec").n
    if mode == REUSE:
        assert calls.count(4) == 1 + 7, "a warm-up, and as often as the one that asks for most"
        assert both.run_id in {run.run_id for run in result.results["one"].tracked}
        printed = console.file.getvalue()
        assert f"prompt_4: not measured again, reused: one, run {both.run_id}" in printed
        # Whoever reads the study later finds the run again, by the link that the study keeps.
        later = tracked_runs(study=result.results["two"].study.study_id, tracking_uri=uri)
        assert both.run_id in {run.run_id for run in later}
        assert len(tracked) == 3
    else:
        assert calls.count(4) == 1 + 5 + 1 + 7
        assert len(tracked) == 4
    assert count == (12 if mode == POOL else 7)
    if mode == POOL:
        assert list(json.loads(both.params["pooled"])) == ["one/prompt_4", "two/prompt_4"]
    recommendation = recommend(with_samples(tracked, uri), Limits())
    named = [name for name, _ in recommendation.ruled_out] + [recommendation.scenario]
    assert len(named) == len(set(named))


def test_equal_scenarios_are_recognized_and_trainings_are_never_shared():
    common = SuiteCache(REUSE, (), MACHINE)
    one = scenario("one", baseline=True)
    for alike in (
        scenario("two"),
        replace(one, repeat=RepeatPolicy(min_repeats=9)),
        replace(one, quality=QualityCheck()),
        replace(one, variant=replace(one.variant, device="cpu")),
    ):
        assert common._cell(alike) == common._cell(one)
    for other in (
        replace(one, task=replace(one.task, max_new_tokens=9)),
        replace(one, variant=replace(one.variant, dtype="bfloat16")),
        replace(one, variant=replace(one.variant, options=(("threads", 1),))),
    ):
        assert common._cell(other) != common._cell(one)
    trained = replace(one, task=TrainTask())
    assert common._cell(trained) == trained


def test_pooled_repeats_are_merged_and_keep_their_names():
    common = SuiteCache(POOL, (), MACHINE)
    first, second = (
        measurement(name, samples={"total_latency_s": times}, metrics={"total_latency_s": times[0]})
        for name, times in (("one", (1.0, 1.1)), ("two", (2.0, 2.1)))
    )
    assert common.pooled("a", first) == first
    pooled = common.pooled("b", second)
    assert pooled.scenario == second.scenario
    assert pooled.samples["total_latency_s"] == (1.0, 1.1, 2.0, 2.1)
    assert pooled.metrics["total_latency_s"] == 1.55
    assert json.loads(pooled.facts["pooled"]) == {"a/one": {"total_latency_s": 1.0}, "b/two": {"total_latency_s": 2.0}}
