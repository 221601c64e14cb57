"""An unwritable spool does not stop tracking to the store; what neither accepts is lost and reported."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient

from llmtrack.errors import TrackingError
from llmtrack.tracking.write import push as pushing
from llmtrack.tracking.write.spool import Spool
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import failure, measurement, start_study
from tests.tracking.write.test_tracker import all_runs, artifact, scenario_runs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k"]
    if (
        shutil.which("mount") is None
        or subprocess.run(["mount", *options, "tmpfs", place], capture_output=True).returncode
    ):
        pytest.skip("mounting a small file system needs the rights of root")
    yield place
    subprocess.run(["umount", place], check=True)


def finish(tracker: Tracker, study, tmp_path: Path) -> None:
    (tmp_path / "table.md").write_text("| a |")
    (tmp_path / "plot.png").write_bytes(os.urandom(200_000))
    tracker.finish_study(
        study, "failed", "note", {"table.md": tmp_path / "table.md", "plots/plot.png": tmp_path / "plot.png"}
    )


def check_complete(tracker: Tracker, study) -> None:
    """Check that the study and its two scenarios are complete."""
    client = MlflowClient(tracker.tracking_uri)
    assert {run.data.params["scenario"]: run.info.status for run in scenario_runs(tracker)} == {
        "p64": "FINISHED",
        "p128": "FAILED",
    }
    assert len(all_runs(tracker)) == 3
    assert client.get_run(study.run_id).info.status == "FAILED"
    assert artifact(tracker, study.run_id, "table.md") == "| a |"
    assert Path(client.download_artifacts(study.run_id, "plots/plot.png")).stat().st_size == 200_000
    (run,) = (run for run in scenario_runs(tracker) if run.info.status == "FINISHED")
    assert artifact(tracker, run.info.run_id, "sample.txt") == "Once upon a time"
    assert not tracker.offline


@pytest.mark.slow(1)
def test_a_small_disk_that_fills_up_loses_nothing(uri, small_disk, tmp_path, messages):
    tracker = Tracker.open(uri, spool=small_disk / "spool", notify=messages.append)
    study = start_study(tracker)
    (small_disk / "filler").write_bytes(b"x" * 40_000)
    tracker.log(study, measurement())
    tracker.log(study, failure("p128"))
    finish(tracker, study, tmp_path)
    check_complete(tracker, study)
    (line,) = messages
    assert "No space left" in line
    assert "directly" in line


@pytest.mark.slow(1)
@pytest.mark.parametrize("place", ["a file", "no such place"])
def test_a_folder_that_cannot_be_created_loses_nothing(uri, tmp_path, messages, place):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "spool" if place == "a file" else Path("/proc/nowhere/spool")
    tracker = Tracker.open(uri, spool=folder, notify=messages.append)
    study = start_study(tracker)
    tracker.log(study, measurement())
    tracker.log(study, measurement())  # The same outcome, logged twice.
    tracker.log(study, failure("p128"))
    finish(tracker, study, tmp_path)
    check_complete(tracker, study)
    assert len(messages) == 1


@pytest.mark.slow(1)
@pytest.mark.parametrize("step", ["update", "remove"])
def test_a_spool_that_becomes_read_only_meanwhile_loses_nothing(tracker, tmp_path, monkeypatch, messages, step):
    study = start_study(tracker)
    monkeypatch.setattr(Spool, step, Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
    tracker.log(study, measurement())
    tracker.log(study, failure("p128"))
    monkeypatch.undo()
    finish(tracker, study, tmp_path)
    check_complete(tracker, study)
    assert tracker.spool.names() == []


def test_a_full_disk_ends_the_run_and_reports_lost_artifacts(uri, tmp_path, monkeypatch, messages):
    tracker = Tracker.open(uri, spool=Path("/proc/nowhere"), notify=messages.append)
    study = start_study(tracker)
    no_space = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(pushing.tempfile, "TemporaryDirectory", no_space)
    tracker.log(study, measurement())
    finish(tracker, study, tmp_path)
    (run,) = scenario_runs(tracker)
    assert run.info.status == "FINISHED"
    assert run.data.metrics["tokens_per_sec"] == 10.25
    assert MlflowClient(uri).get_run(study.run_id).info.status == "FAILED"
    assert any("p64" in line and "lost" in line for line in messages)
    assert any("table.md, plots/plot.png" in line for line in messages)
    assert not any("cannot be reached" in line for line in messages)


def test_without_spool_and_store_the_loss_is_an_error(uri, monkeypatch, messages):
    tracker = Tracker.open(uri, spool=Path("/proc/nowhere"), notify=messages.append)
    study = start_study(tracker)
    monkeypatch.setattr(MlflowClient, "create_run", Mock(side_effect=ConnectionError("down")))
    with pytest.raises(TrackingError, match="LLMTRACK_SPOOL"):
        tracker.log(study, measurement())
