"""Assumptions of the benchmarks of llmtrack's own cost."""

from __future__ import annotations

import shutil

import pytest

from benchmarks import cost, query
from benchmarks.read_runs import fill
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.write.tracker import Tracker


@pytest.fixture
def database(template_database, tmp_path):
    return shutil.copyfile(template_database, tmp_path / "mlflow.db")


@pytest.mark.slow(1)
def test_copied_runs_are_separate_runs_with_equal_values(database):
    uri = f"sqlite:///{database}"
    fill(uri, query.EXPERIMENT, 2)
    query.copy_runs(database, 5)
    tracked = runs(kind=None, tracking_uri=uri)
    assert (len(tracked), tracked["run_id"].nunique(), tracked["start_time"].nunique()) == (5, 5, 5)
    assert sorted(tracked["tokens_per_sec"].value_counts()) == [2, 3]


@pytest.mark.slow(3)
def test_both_ways_of_tracking_store_the_same_values(database, tmp_path):
    uri = f"sqlite:///{database}"
    times = cost.by_tracker(Tracker.open(uri, "ours", tmp_path / "spool")), cost.by_value(uri)
    assert all(duration["s"] > 0 for duration in times)
    tracked = runs(kind=None, tracking_uri=uri)
    tracked = tracked[tracked["metric_1"].notna()]
    assert list(tracked[f"param_{cost.PARAMS - 1}"]) == [cost.PARAMS - 1] * 2
    assert list(tracked[f"metric_{cost.METRICS - 1}"]) == [cost.METRICS - 1] * 2
