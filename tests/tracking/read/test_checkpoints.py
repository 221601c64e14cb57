"""An unusable checkpoint of a tracked run gives one line without MLflow's messages, and exit code 2."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from experiments import declarations
from llmtrack.run import command
from llmtrack.tracking.uri import sqlite_path
from tests.tracking.samples import measurement, start_study


@pytest.fixture
def tracked_checkpoint(filled_once, uri, tiny_model_dir, tmp_path, monkeypatch):
    """The run of a checkpoint, and its folder in the store."""
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))

    def track(tracker):
        files = {f"checkpoint/{file.name}": str(file) for file in tiny_model_dir.iterdir()}
        run_id = tracker.log(start_study(tracker), measurement(files=files))
        return run_id, MlflowClient(tracker.tracking_uri).get_run(run_id).info.artifact_uri

    run_id, artifact_uri = filled_once("checkpoint", track)
    own = shutil.copytree(urlsplit(artifact_uri).path, tmp_path / "artifacts")
    with closing(sqlite3.connect(sqlite_path(uri))) as database, database:
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (str(own), run_id))
    return run_id, own / "checkpoint"


def refusal(run_id, uri):
    """Return the command's one-line output."""
    line = [
        "--model",
        f"runs:/{run_id}/checkpoint",
        "--tracking-uri",
        uri,
        "--executor",
        "inline",
        "--device",
        "cpu",
    ]
    done = CliRunner().invoke(command.command(declarations()["prompt_length"]), line)
    assert done.exit_code == 2, done.output
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert done.output.splitlines() == errors, done.output
    assert len(errors) == 1
    assert "Traceback" not in done.output
    return errors[0]


def dangling(folder):
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "gone")


def circular(folder):
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)


def outside(folder):
    """MLflow serves no file outside its store."""
    elsewhere = folder.parents[1] / "elsewhere"
    shutil.move(folder / "model.safetensors", elsewhere)
    (folder / "model.safetensors").symlink_to(elsewhere)


def a_link_to_nowhere(folder):
    shutil.rmtree(folder)
    folder.symlink_to(folder.with_name("gone"))


@pytest.mark.slow(1)
@pytest.mark.parametrize("fault", [dangling, circular, outside, shutil.rmtree, a_link_to_nowhere])
def test_a_missing_or_dangling_checkpoint_gives_one_line(tracked_checkpoint, uri, fault):
    run_id, folder = tracked_checkpoint
    fault(folder)
    assert f"runs:/{run_id}/checkpoint: " in refusal(run_id, uri)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "error",
    [
        MlflowException("the server\nfell over"),
        OSError(28, "No space left on device"),
        ConnectionError("reset"),
        RuntimeError("x"),
    ],
)
def test_a_failed_download_gives_one_line_and_leaves_nothing(tracked_checkpoint, uri, monkeypatch, tmp_path, error):
    def fail(self, run_id, path, folder):
        Path(folder, "half").write_text("of it")
        raise error

    monkeypatch.setattr(MlflowClient, "download_artifacts", fail)
    monkeypatch.setattr("llmtrack.models.disk._free", lambda folder: {folder: 2**40})
    assert "its files cannot be fetched" in refusal(tracked_checkpoint[0], uri)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix != ".lock"]
