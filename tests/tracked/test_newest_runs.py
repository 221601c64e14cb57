"""The newest run of each scenario, and the counterpart of a candidate."""

from __future__ import annotations

import pytest

from llmtrack.decide.selection import pair_runs
from tests.report.artificial_runs import column, make_runs, run


def at(minute, scenario="a", **values):
    return run(
        scenario,
        run_id=f"{scenario}{minute}",
        start_time=f"2026-11-28T10:{minute:02}:00Z",
        environment_id="e1",
        workload_id="w1",
        **values,
    )


def test_the_newest_run_of_each_cell_is_kept():
    rows = [at(3), at(1), at(2), at(1, "b"), at(4, dtype="bfloat16"), at(0, model_id="other")]
    assert set(column(make_runs(*rows).newest_of_each(), "run_id")) == {"a3", "b1", "a4", "a0"}


def test_another_machine_or_workload_is_another_cell():
    rows = [
        at(1),
        at(2) | {"environment_id": "e2"},
        at(3) | {"workload_id": "w2"},
        at(4) | {"workload_id": None},
    ]
    assert len(make_runs(*rows).newest_of_each()) == 4


def test_two_failures_without_a_known_model_are_one_cell():
    rows = [at(1, model_id=None, dtype=None), at(2, model_id=None, dtype=None)]
    assert list(column(make_runs(*rows).newest_of_each(), "run_id")) == ["a2"]


@pytest.mark.slow(1)
def test_a_failure_is_replaced_by_a_newer_run_of_the_same_request_and_replaces_no_finished_run():
    request = {"model": "m", "device_requested": "auto", "dtype_requested": "auto", "scenario_id": "q1"}
    unloaded = {"model_id": None, "device": None, "dtype": None, "status": "FAILED", **request}
    failed = [at(minute, **unloaded) | {"workload_id": None} for minute in (1, 3)]
    finished = at(2, **request)
    assert list(column(make_runs(failed[0], finished).newest_of_each(), "run_id")) == ["a2"]
    assert set(column(make_runs(finished, failed[1]).newest_of_each(), "run_id")) == {"a2", "a3"}
    assert len(make_runs(finished, failed[0] | {"model": "another"}).newest_of_each()) == 2
    assert len(make_runs(finished, failed[0] | {"scenario_id": "q2"}).newest_of_each()) == 2
    assert len(make_runs(finished, failed[0] | {"scenario_id": "q2"}).newest_of_each(across_work=True)) == 1


def test_a_comparison_takes_the_newest_work_and_a_table_all_work():
    runs = make_runs(at(1), at(2) | {"workload_id": "w2"})
    assert list(column(runs.newest_of_each(), "run_id")) == ["a1", "a2"]
    assert list(column(runs.newest_of_each(across_work=True), "run_id")) == ["a2"]


@pytest.mark.slow(1)
def test_the_counterpart_has_the_same_variant_if_there_is_one():
    baselines = make_runs(at(3, backend="onnx"), at(2), at(1) | {"workload_id": "w2"})
    for minute, candidate in ((3, at(9, backend="onnx")), (2, at(9)), (3, at(9, dtype="bfloat16"))):
        ((pair,), _) = pair_runs(baselines, make_runs(candidate))
        assert pair.baseline.run_id == f"a{minute}"
    ((other_work,), _) = pair_runs(baselines, make_runs(at(9) | {"workload_id": "w2"}))
    assert other_work.baseline.run_id == "a1"


def test_runs_are_sorted_by_the_start_of_their_study_and_then_by_their_own():
    rows = [
        at(9, "x", study_id="s2"),
        at(5, "y", study_id="s2"),
        at(7, "z", study_id="s1"),
        at(1, "w", study_id="s1"),
    ]
    assert list(column(make_runs(*rows).in_order_of_time(), "scenario")) == ["w", "z", "y", "x"]
