"""A study or suite announces its work and, as far as known, its duration."""

from __future__ import annotations

import pytest

from llmtrack.experiment import Experiment
from llmtrack.models import durations
from llmtrack.run.study.announce import announcement, last_duration, record_duration
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy


def experiment(name: str, *seconds: float) -> Experiment:
    task = GenerateTask(("a",))
    timed = [Scenario(f"s{n}", Variant(), task, RepeatPolicy(max_seconds=most)) for n, most in enumerate(seconds)]
    return Experiment(
        name,
        "?",
        (*timed, Scenario("scored", Variant(), PerplexityTask())),
        plots=lambda runs, series: {},
        reading=lambda runs: [],
    )


ONE, TWO = experiment("batching", 30.0, 30.0), experiment("perplexity")
CALLS = "Counted calls take up to 1:00, plus the last one of each scenario; loading, warm-up and scoring come on top."
REST = "The remaining time is estimated while it runs."


@pytest.mark.parametrize(
    ("experiments", "took", "words"),
    [
        ([ONE], {"batching": 61.0}, "Plan: 3 scenarios, about 1:01: as long as the same took here the last time."),
        ([ONE], {}, f"Plan: 3 scenarios. {CALLS} {REST}"),
        ([TWO], {}, f"Plan: 1 scenario. {REST}"),
        (
            [ONE, TWO],
            {"batching": 61.0, "perplexity": 20.0},
            "Plan: 2 experiments (batching, perplexity), 4 scenarios, about 1:21: as long as the same took here the last time.",
        ),
        (
            [TWO, ONE],
            {"perplexity": 20.0},
            "Plan: 2 experiments (perplexity, batching), 4 scenarios. perplexity took 0:20 here the last time, the others are "
            f"new. {CALLS} {REST}",
        ),
    ],
)
def test_the_announcement(experiments, took, words):
    number = sum(len(experiment.scenarios) for experiment in experiments)
    assert announcement(experiments, number, took) == words


def test_a_duration_is_of_equal_scenarios_and_environments(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "folder", lambda: tmp_path)
    record_duration(ONE, "here", 61.0)
    assert last_duration(ONE, "here") == 61.0
    assert last_duration(ONE, "elsewhere") is None
    assert last_duration(experiment("batching", 30.0), "here") is None
    assert last_duration(TWO, "here") is None
