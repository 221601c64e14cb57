"""A disturbed baseline is remeasured once before others are compared with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmtrack.decide.verdicts import DISTURBED
from llmtrack.measure import disturbances, statistics
from llmtrack.measure.statistics import disturbed
from llmtrack.run.study.remeasure import MOST_ROUNDS, run_undisturbed
from llmtrack.spec.events import Log
from llmtrack.spec.scenario import QualityCheck
from tests.tracking.samples import failure, measurement, scenario

BASE = replace(scenario("base", baseline=True), quality=QualityCheck())
FIRST = measurement(
    scenario=BASE,
    disturbed=True,
    metrics={"tokens_per_sec": 1.3, "perplexity": 20.0},
    warnings=("the machine was busy: 82%",),
    started_at=1.0,
)
# Its repeats leave no time for further ones.
OTHER = measurement("other", disturbed=True, samples={"total_latency_s": (29.0, 29.0)})
QUIET = measurement(scenario=replace(BASE, quality=None), metrics={"tokens_per_sec": 23.0}, warnings=(), started_at=9.0)


class Scripted:
    """Emits a scripted list of events per call; an exception ends the call."""

    def __init__(self, *calls) -> None:
        self.calls, self.asked = list(calls), []

    def run(self, group, on_event) -> None:
        self.asked.append(tuple(group))
        for event in self.calls.pop(0):
            if isinstance(event, BaseException):
                raise event
            on_event(event)


def measured(*calls):
    executor, events, first = Scripted(*calls), [], []
    try:
        run_undisturbed(executor, (BASE, OTHER.scenario), events.append, first.append)
    except KeyboardInterrupt:
        events.append("interrupted")
    return executor, events, first


def test_a_disturbed_baseline_is_remeasured_and_the_newer_counts():
    executor, (other, log, newer), (first,) = measured([FIRST, OTHER], [Log("again"), QUIET])
    assert executor.asked[1] == (replace(BASE, quality=None),), "its quality is known already"
    assert (other, log) == (OTHER, Log("again")), "only the baseline is measured again"
    assert newer.scenario == BASE
    assert newer.metrics == {"tokens_per_sec": 23.0, "perplexity": 20.0}
    assert newer.warnings == ("remeasured: the first run was disturbed (1.3 tokens/s before, 23 now)",)
    assert not first.scenario.baseline
    assert first.metrics == FIRST.metrics
    assert "measured once more" in first.warnings[-1]


def test_a_baseline_is_remeasured_once_only():
    executor, events, _ = measured([FIRST], [replace(QUIET, disturbed=True)])
    assert len(executor.asked) == 2
    assert [event.metrics["tokens_per_sec"] for event in events] == [23.0]


@pytest.mark.parametrize("events", [[failure(scenario=BASE)], []], ids=["failed", "silent"])
def test_if_remeasuring_fails_the_first_stays_the_baseline(events):
    _, outcomes, first = measured([FIRST], events)
    assert (outcomes, first) == ([FIRST], [])


def test_an_interruption_loses_no_measurement():
    for calls in ([[FIRST, KeyboardInterrupt()]], [[FIRST], [KeyboardInterrupt()]]):
        _, events, first = measured(*calls)
        assert (events, first) == ([FIRST, "interrupted"], [])


def test_a_quiet_baseline_is_measured_once():
    executor, events, _ = measured([replace(FIRST, disturbed=False), OTHER])
    assert len(executor.asked) == 1
    assert len(events) == 2


def rounds(*durations, disturbed_since=()):
    """Return a disturbed scenario, not a baseline, and its outcome after rounds of the given durations."""
    first = measurement(
        "arm",
        disturbed=True,
        warnings=("noisy: repeats vary by 60%", "random weights: quality is meaningless"),
        samples={"total_latency_s": (1.0, 3.0, 1.0, 4.0, 1.0)},
        metrics={"total_latency_s": 1.0, "perplexity": 20.0},
        scenario=replace(scenario("arm"), quality=QualityCheck()),
    )
    newer = [
        [
            measurement(
                "arm",
                samples={"total_latency_s": seconds},
                warnings=(),
                metrics={"total_latency_s": 1.0},
                disturbed=place in disturbed_since,
            )
        ]
        for place, seconds in enumerate(durations)
    ]
    executor, events = Scripted([first], *newer), []
    run_undisturbed(executor, (first.scenario,), events.append, lambda first: None)
    ((complete,), requested) = events, executor.asked[1:]
    return first, complete, [scenario for (scenario,) in requested]


STEADY = (1.0, 1.01, 0.99, 1.0, 1.0, 1.01, 0.99, 1.0)


def test_a_disturbed_scenario_gets_more_repeats_which_all_count():
    first, complete, (requested,) = rounds(STEADY)
    assert requested.quality is None, "its quality is known already"
    assert requested.repeat == replace(first.scenario.repeat, max_seconds=50.0), "10 of 60 seconds are used"
    assert complete.samples["total_latency_s"] == (1.0, 3.0, 1.0, 4.0, 1.0, *STEADY)
    assert complete.summaries["total_latency_s"].n == 13
    assert complete.metrics["perplexity"] == 20.0
    assert complete.scenario == first.scenario
    assert not complete.disturbed
    assert complete.warnings == (
        "random weights: quality is meaningless",
        "disturbed at first, then repeated: the median of all repeats is known to 0.5%",
    )


def test_a_scenario_that_stays_disturbed_is_marked():
    _, merged, policies = rounds(*[(1.0, 5.0)] * MOST_ROUNDS, disturbed_since=range(MOST_ROUNDS))
    assert len(policies) == MOST_ROUNDS
    assert merged.disturbed
    assert merged.warnings[-1] == "still disturbed after more repeats"
    assert any(line.startswith(DISTURBED) for line in merged.warnings)
    assert len(merged.samples["total_latency_s"]) == 5 + 2 * MOST_ROUNDS


def test_a_disturbed_scenario_without_time_is_unchanged():
    _, merged, policies = rounds((20.0, 29.0), disturbed_since=(0,))
    assert len(policies) == 1, "59 of 60 seconds are used"
    assert merged.samples["total_latency_s"][-2:] == (20.0, 29.0)
    assert merged.disturbed


def test_untimed_scenarios_are_not_repeated():
    events = []
    untimed = measurement("scored", disturbed=True, samples={})
    run_undisturbed(Scripted([untimed]), (untimed.scenario,), events.append, lambda first: None)
    assert events == [untimed]


@pytest.mark.parametrize(
    ("durations", "is_disturbed"),
    [
        ([1.0, 1.01, 0.99, 1.0, 1.0], False),
        ([1.0, 3.0, 1.0, 5.0, 1.0], True),
        ([1.0, 1.0, 1.1, 1.15, 1.2, 1.2], True),
        ([1.0], False),
        ([], False),
    ],
)
def test_variation_and_drift_count_as_disturbance(durations, is_disturbed):
    assert disturbed(durations) is is_disturbed


def test_no_test_depends_on_how_busy_the_machine_is(steady_repeats):
    before, after = (disturbances.CpuReading(*seconds) for seconds in ((0, 0, 0), (1000, 0, 1000)))
    assert disturbances.busy_warning(before, after) == ()
    assert not statistics.disturbed([1.0, 9.0, 1.0, 30.0])
