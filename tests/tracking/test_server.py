"""A real `mlflow server` behind a connection that can be cut."""

import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts

from llmtrack.errors import TrackingError
from llmtrack.spec.pointer import Pointer, read_pointer
from llmtrack.spec.scenario import Variant
from llmtrack.tracking import store
from llmtrack.tracking.read.lookup import run_of_alias, set_alias
from llmtrack.tracking.read.query import runs, runs_of_id, studies
from llmtrack.tracking.read.source import Source
from llmtrack.tracking.write import sync
from llmtrack.tracking.write.models import register
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import ENVIRONMENT, measurement

pytestmark = pytest.mark.slow(5)


def test_a_study_is_tracked_and_read_back_through_a_server(server, experiment, tmp_path):
    tracker = Tracker.open(server.uri, experiment, tmp_path / "spool")
    study = tracker.start_study(experiment, "q", {"a": 1}, ENVIRONMENT)
    run_id = tracker.log(study, measurement())
    tracker.finish_study(study, "finished", "note")
    table = runs(experiment=experiment, tracking_uri=server.uri)
    assert list(table["run_id"]) == [run_id]
    assert table["total_latency_s"][0] == 1.5
    assert list(studies(experiment, tracking_uri=server.uri)["status"]) == ["FINISHED"]
    path = Path(MlflowClient(server.uri).download_artifacts(run_id, "sample.txt"))
    assert path.read_text() == "Once upon a time"


def test_a_run_is_registered_and_found_by_its_aliases_through_a_server(server, experiment, tmp_path):
    tracker = Tracker.open(server.uri, experiment, tmp_path / "spool")
    study = tracker.start_study("precision", "q", {}, ENVIRONMENT)
    run_id = tracker.log(study, measurement())
    tracker.finish_study(study, "finished")
    (run,) = runs_of_id(run_id, server.uri)
    pointer = Pointer(Variant("packaged:tiny"), {"weights_digest": "abc"})
    versions = [register(run, pointer, experiment, alias, server.uri) for alias in ("champion", "challenger")]
    assert [version.version for version in versions] == ["1", "1"]
    client = MlflowClient(server.uri)
    (model,) = client.search_registered_models(f"name = '{experiment}'")
    assert {alias: str(version) for alias, version in model.aliases.items()} == {"champion": "1", "challenger": "1"}
    assert client.get_model_version_by_alias(experiment, "champion").run_id == run_id
    target = tmp_path / "downloaded"
    logged = client.get_logged_model(run.model_uri.removeprefix("models:/"))
    download_artifacts(logged.artifact_location, dst_path=str(target), tracking_uri=server.uri)
    assert read_pointer(next(target.rglob("llmtrack.json")).parent) == pointer
    assert run_of_alias(Source(server.uri), f"{experiment}@champion") == run_id
    assert set_alias(experiment, run_id, server.uri) is None
    assert run_of_alias(Source(server.uri), experiment) == run_id


@pytest.fixture
def slept(monkeypatch):
    """Record the seconds of each sleep, as between retries."""
    seconds, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda of: seconds.append(of) or sleep(of))
    return seconds


def test_a_server_that_goes_down_loses_and_duplicates_nothing(
    server, line, experiment, tmp_path, messages, spooled, slept
):
    tracker = Tracker.open(line.uri, experiment, tmp_path / "spool", messages.append)
    study = tracker.start_study(experiment, "q", {}, ENVIRONMENT)
    assert tracker.log(study, measurement("before")) is not None
    line.down()
    slept.clear()
    assert tracker.log(study, measurement("during-1")) is None
    assert tracker.log(study, measurement("during-2")) is None
    assert tracker.finish_study(study, "finished", "note") is None
    assert sum(slept) < 60
    assert tracker.offline
    assert len(spooled()) == 3
    assert len(messages) == 1
    assert sync.sync(tmp_path / "spool").left == 3
    line.up()
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=3, left=0)
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=0, left=0)
    table = runs(experiment=experiment, tracking_uri=server.uri)
    assert sorted(table["scenario"]) == ["before", "during-1", "during-2"]
    assert set(table["status"]) == {"FINISHED"}
    assert list(studies(experiment, tracking_uri=server.uri)["status"]) == ["FINISHED"]


def test_a_tracker_reconnects_to_a_server_that_starts_later(server, line, experiment, tmp_path, messages, spooled):
    line.down()
    tracker = Tracker.open(line.uri, experiment, tmp_path / "spool", messages.append)
    assert tracker.offline
    study = tracker.start_study(experiment, "q", {}, ENVIRONMENT)
    tracker.log(study, measurement())
    line.up()
    assert tracker.finish_study(study, "finished") is not None
    assert not tracker.offline
    assert spooled() == []
    assert len(runs(study=study.study_id, tracking_uri=server.uri)) == 1
    assert len(studies(experiment, tracking_uri=server.uri)) == 1


def test_a_connection_cut_after_creating_a_run_makes_no_duplicate(
    server, line, experiment, tmp_path, monkeypatch, messages
):
    tracker = Tracker.open(line.uri, experiment, tmp_path / "spool", messages.append)
    study = tracker.start_study(experiment, "q", {}, ENVIRONMENT)
    real = MlflowClient.create_run

    def create_and_cut(self, *args, **kwargs):
        run = real(self, *args, **kwargs)
        line.down()
        return run

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", create_and_cut)
        assert tracker.log(study, measurement()) is None
    line.up()
    assert tracker.sync().sent == 1
    table = runs(experiment=experiment, tracking_uri=server.uri)
    assert len(table) == 1
    assert table["total_latency_s"][0] == 1.5


def test_a_record_over_one_megabyte_is_accepted(server, experiment, tmp_path):
    tracker = Tracker.open(server.uri, experiment, tmp_path / "spool")
    facts = {f"fact_{index}": "é" * 5_000 for index in range(60)}
    series = {"gap": tuple(float(index) for index in range(3_000))}
    run_id = tracker.log(tracker.start_study(experiment, "q", {}, {}), measurement(facts=facts, series=series))
    run = MlflowClient(server.uri).get_run(run_id)
    assert run.data.params["fact_59"] == "é" * 5_000
    assert run.data.metrics["series/gap"] == 2_999.0


def test_another_http_server_is_a_clear_error(line, server):
    with pytest.raises(TrackingError, match="does not answer as an MLflow server"):
        store.open_store(server.uri + "/nothing/here")
