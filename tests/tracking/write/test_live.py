"""Runs are written while they go on: each step exactly once, whatever happens to the store."""

from __future__ import annotations

import dataclasses
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from llmtrack.spec.outcome import StepValues
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.write import tracker as tracker_module
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import failure, measurement, start_study

TRAINING = Scenario("training", Variant("synthetic:tiny"), TrainTask(output="somewhere"))
KEY = "0123456789abcdef0123456789abcdef"
BEGAN = 1_790_000_000.0


def rows(first, last):
    return tuple(StepValues(n, BEGAN + n, {"train_loss": 7 - n / 10, "grad_norm": 1.0}) for n in range(first, last + 1))


def begin(tracker, study, resumed=False):
    return tracker.begin(study, TRAINING, KEY, {"device": "cpu"}, {"weights_digest": "w"}, BEGAN, resumed)


def done(steps, **changes):
    values = {
        "scenario": TRAINING,
        "run_key": KEY,
        "steps": steps,
        "started_at": BEGAN,
        "series": {},
        "summaries": {},
    }
    return measurement(**{**values, "metrics": {"loss": 6.5}, "facts": {"device": "cpu"}, **changes})


def history(uri, run_id, name="train_loss"):
    return [(m.step, m.value) for m in MlflowClient(uri).get_metric_history(run_id, f"series/{name}")]


EXPECTED = [(n, 7 - n / 10) for n in range(1, 7)]


@pytest.mark.slow(1)
def test_steps_are_readable_during_the_run(tracker, uri):
    study = start_study(tracker)
    run_id = begin(tracker, study)
    tracker.log_steps(KEY, rows(1, 3))
    client = MlflowClient(uri)
    assert client.get_run(run_id).info.status == "RUNNING"
    assert client.get_run(run_id).data.params["sequence_length"] == "256"
    assert "output" not in client.get_run(run_id).data.params, "a path on this machine"
    assert history(uri, run_id) == EXPECTED[:3]
    tracker.log_steps(KEY, rows(4, 6))
    assert tracker.log(study, done(rows(1, 6))) == run_id
    assert history(uri, run_id) == EXPECTED
    run = client.get_run(run_id)
    assert (run.info.status, run.info.start_time) == ("FINISHED", round(1000 * BEGAN))
    assert run.data.metrics["loss"] == 6.5
    assert len(runs(tracking_uri=uri)) == 1
    assert not tracker.spool.names()


def test_each_batch_of_steps_is_one_request(tracker, monkeypatch):
    study = start_study(tracker)
    begin(tracker, study)
    calls = []
    honest = MlflowClient.log_batch
    monkeypatch.setattr(
        MlflowClient,
        "log_batch",
        lambda self, *a, **k: calls.append(len(k["metrics"])) or honest(self, *a, **k),
    )
    tracker.log_steps(KEY, rows(1, 100))
    assert calls == [200]


@pytest.mark.slow(1)
def test_steps_that_failed_are_written_with_the_outcome(tracker, uri, monkeypatch, messages):
    study = start_study(tracker)
    run_id = begin(tracker, study)
    tracker.log_steps(KEY, rows(1, 2))
    with monkeypatch.context() as broken:
        broken.setattr(tracker_module, "push_steps", Mock(side_effect=MlflowException("the server is away")))
        tracker.log_steps(KEY, rows(3, 4))
    assert tracker.offline
    tracker.log_steps(KEY, rows(5, 6))  # not even tried so soon
    assert history(uri, run_id) == EXPECTED[:2]
    tracker.delivery._retry_at = 0.0
    assert tracker.log(study, done(rows(1, 6))) == run_id
    assert history(uri, run_id) == EXPECTED
    assert any("cannot be reached" in line for line in messages)


@pytest.mark.slow(1)
def test_an_interrupted_and_resumed_training_is_one_run(uri, tmp_path):
    first = Tracker.open(uri, spool=tmp_path / "one")
    study = start_study(first)
    run_id = begin(first, study)
    first.log_steps(KEY, rows(1, 2))
    stopped = failure(
        scenario=TRAINING,
        kind="interrupted",
        reason="Ctrl-C",
        run_key=KEY,
        steps=rows(1, 3),
        started_at=BEGAN,
    )
    assert first.log(study, stopped) == run_id
    client = MlflowClient(uri)
    run = client.get_run(run_id)
    assert (run.info.status, run.data.tags["llmtrack.outcome"]) == ("KILLED", "killed")
    assert run.data.tags["llmtrack.failure"] == "interrupted"
    assert history(uri, run_id) == EXPECTED[:3]

    second = Tracker.open(uri, spool=tmp_path / "two")
    later = start_study(second)
    assert begin(second, later, resumed=True) == run_id
    run = client.get_run(run_id)
    assert run.info.status == "RUNNING"
    assert not {"llmtrack.outcome", "llmtrack.failure", "llmtrack.reason"} & set(run.data.tags)
    second.log_steps(KEY, rows(1, 3))  # what the checkpoint knows is told again
    second.log_steps(KEY, rows(4, 6))
    assert second.log(later, done(rows(1, 6))) == run_id
    assert history(uri, run_id) == EXPECTED
    (_, only), *others = runs(tracking_uri=uri).iterrows()
    assert not others
    assert (only["status"], only["study_id"]) == ("FINISHED", later.study_id)


@pytest.mark.slow(1)
def test_everything_is_spooled_without_a_store_and_sent_once(uri, tmp_path, monkeypatch, messages):
    from llmtrack.tracking import store, store_errors
    from llmtrack.tracking.write import sync

    with monkeypatch.context() as away:
        away.setattr(store, "open_store", Mock(side_effect=store_errors.UnreachableError("nobody is there")))
        tracker = Tracker.open(uri, spool=tmp_path / "spool", notify=messages.append)
        study = start_study(tracker)
        assert begin(tracker, study) is None
        tracker.log_steps(KEY, rows(1, 3))
        assert tracker.log(study, done(rows(1, 6))) is None
        tracker.finish_study(study, "finished")
    assert len(tracker.spool.names()) == 2, "the study and the training, not one record for each thing told"
    for _ in range(2):
        sync.sync(tmp_path / "spool", uri, messages.append)
    table = runs(tracking_uri=uri)
    assert table["status"].tolist() == ["FINISHED"]
    assert history(uri, table["run_id"][0]) == EXPECTED


def test_non_finite_values_are_omitted(tracker, uri):
    study = start_study(tracker)
    run_id = begin(tracker, study)
    bad = dataclasses.replace(rows(1, 1)[0], values={"train_loss": float("nan"), "grad_norm": 2.0})
    tracker.log_steps(KEY, [bad])
    tracker.log(study, done((bad,)))
    assert history(uri, run_id) == []
    assert history(uri, run_id, "grad_norm") == [(1, 2.0)]


@pytest.mark.slow(1)
def test_files_of_a_measurement_become_artifacts(tracker, uri, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    study = start_study(tracker)
    begin(tracker, study)
    run_id = tracker.log(study, done((), files={"checkpoint/config.json": str(tmp_path / "config.json")}))
    assert [artifact.path for artifact in MlflowClient(uri).list_artifacts(run_id, "checkpoint")] == [
        "checkpoint/config.json"
    ]


@pytest.mark.slow(1)
@pytest.mark.parametrize("path", ["checkpoint", "missing"])
def test_a_checkpoint_is_downloaded_once_or_reported_missing(tracker, uri, tmp_path, tiny_model_dir, monkeypatch, path):
    from llmtrack.errors import UsageError
    from llmtrack.models.source import missing_path, parse_candidates
    from llmtrack.tracking.read.checkpoints import fetch_checkpoints

    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    study = start_study(tracker)
    files = {f"checkpoint/{file.name}": str(file) for file in tiny_model_dir.iterdir()}
    run_id = tracker.log(study, done((), files=files))
    spec = f"runs:/{run_id}/{path}"
    scenario = dataclasses.replace(TRAINING, variant=Variant(spec))
    (source,) = parse_candidates(spec)
    assert "is not fetched yet" in (missing_path(source) or "")
    if path == "missing":
        with pytest.raises(UsageError, match="has no model folder of that name"):
            fetch_checkpoints([scenario], uri)
        fetch_checkpoints([dataclasses.replace(scenario, variant=Variant(f"{spec},synthetic:tiny"))], uri)
        with pytest.raises(UsageError, match="no such run in this tracking store"):
            fetch_checkpoints([dataclasses.replace(scenario, variant=Variant(f"runs:/{'0' * 32}/checkpoint"))], uri)
        return
    fetch_checkpoints([scenario], uri)
    assert missing_path(source) is None
    monkeypatch.setattr(MlflowClient, "download_artifacts", None)
    fetch_checkpoints([scenario], uri)
    from llmtrack.engines.registry import load_engine

    engine = load_engine(spec, device="cpu")
    assert engine.info.model_id == spec
    assert engine.info.facts["model_source"] == "run"
