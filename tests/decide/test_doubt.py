"""How a run was disturbed, in a few words, and where it stands: behind the name that a headline claims."""

from __future__ import annotations

import pytest

from llmtrack.decide.recommending import Limits, recommend
from llmtrack.decide.verdicts import disturbance
from llmtrack.measure.disturbances import CpuReading, busy_warning
from llmtrack.measure.statistics import findings
from llmtrack.spec.task import RepeatPolicy
from tests.report.frames import interval, made, run

BUSY = "the machine was busy: other programs took 82% of its CPU time: close them and measure again"


@pytest.mark.parametrize(
    ("durations", "words"),
    [
        # Mean 1.1, deviations 0.1 and 0.3: sd 0.2, 18 %.
        ([1.0, 1.0, 1.0, 1.4], "varied by 18 %"),
        ([1.0] * 4 + [1.12] * 8, "drifted by 12 %"),
        ([1.0, 1.0, 1.0, 1.0], ""),
    ],
)
def test_the_words_are_those_of_what_the_measuring_side_says(durations, words):
    assert disturbance(findings(durations, RepeatPolicy(min_repeats=1))) == words


def test_so_are_those_of_a_busy_machine(monkeypatch):
    monkeypatch.setattr("llmtrack.measure.disturbances.BUSY_SHARE", 0.1)
    readings = CpuReading(0, 0, 0), CpuReading(50, 10, 100), CpuReading(50, 10, 100, stolen=35)
    ours, stolen = (busy_warning(readings[0], after) for after in readings[1:])
    assert disturbance(ours) == "others took 40 % of the CPU"
    assert disturbance(stolen) == "others took 35 % of the CPU"


def test_a_recommendation_says_first_that_its_run_was_disturbed():
    common = {"workload_id": "w", "environment_id": "e", "perplexity": 20.0}
    runs = made(
        run("fp32", baseline=True, **interval("tokens_per_sec", 10.0, 9.8, 10.2, 8), **common),
        run("int8", dtype="int8", warnings=BUSY, **interval("tokens_per_sec", 25.0, 24.5, 25.5, 8), **common),
    )
    words = recommend(runs, Limits()).sentence
    assert words.startswith("Run int8 (in doubt: others took 82 % of the CPU): the fastest of 2 scenarios")
