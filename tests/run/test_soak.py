"""A long study leaks nothing, and two writers lose nothing; benchmarks/soak.py is the long version."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak import Untracked, soak
from llmtrack.measure import ceilings
from llmtrack.tracking.read.query import runs, studies
from llmtrack.tracking.write.tracker import Tracker
from tests.forking import at_once


@pytest.fixture(autouse=True)
def _own_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "copy_bandwidth", ceilings.copy_bandwidth)  # given back afterwards


@pytest.mark.slow(3)
def test_no_file_stays_open_and_no_record_remains(tracker, uri):
    result, readings = soak(tracker, 12, 4)
    assert (result.measured, result.failed, result.problems) == (12, 0, ())
    assert readings[-1].files <= readings[0].files
    assert len(runs(tracking_uri=uri)) == 12
    assert tracker.spool.names() == []


@pytest.mark.slow(2)
def test_memory_and_descriptors_are_flat_over_200_scenarios():
    """Of measuring and tracking: 8 MiB over the last 150 scenarios would be 50 KiB each."""
    result, readings = soak(Untracked(), 200, 50)
    assert (result.measured, result.failed) == (200, 0)
    assert [reading.scenarios for reading in readings] == [50, 100, 150, 200]
    assert readings[-1].files <= readings[0].files
    assert readings[-1].rss_mib < readings[0].rss_mib + 8


def _write(uri: str, spool: Path) -> None:
    soak(Tracker.open(uri, spool=spool), 6, 6)


@pytest.mark.slow(12)
def test_two_concurrent_studies_share_store_and_spool(uri, tmp_path):
    at_once(_write, uri, tmp_path / "spool")
    assert list(studies(tracking_uri=uri)["status"]) == ["FINISHED", "FINISHED"]
    result = runs(tracking_uri=uri)
    assert sorted(result.groupby("study_id").size()) == [6, 6]
