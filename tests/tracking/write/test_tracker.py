import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from llmtrack.errors import TrackingError
from llmtrack.tracking.write import push, sync
from llmtrack.tracking.write.tracker import Tracker
from tests.forking import at_once
from tests.search_path import with_folders
from tests.tracking.samples import failure, measurement, scenario, start_study


def all_runs(tracker: Tracker):
    client = MlflowClient(tracker.tracking_uri)
    return client.search_runs([item.experiment_id for item in client.search_experiments()], max_results=1000)


def scenario_runs(tracker: Tracker):
    return [run for run in all_runs(tracker) if run.data.tags.get("llmtrack.kind") == "scenario"]


def artifact(tracker: Tracker, run_id: str, path: str) -> str:
    return Path(MlflowClient(tracker.tracking_uri).download_artifacts(run_id, path)).read_text()


@pytest.mark.slow(1)
def test_a_study_is_tracked_from_start_to_end(tracker, tmp_path, spooled, messages):
    study = start_study(tracker)
    client = MlflowClient(tracker.tracking_uri)
    opened = client.get_run(study.run_id)
    assert opened.info.status == "RUNNING"
    assert opened.data.params == {"cfg.dtypes": "fp32,bf16", "cfg.warmup": "1"}
    assert study.study_id.startswith("precision-")

    run_id = tracker.log(study, measurement())
    tracker.log(study, failure("p128"))
    tracker.log_same_as(study, scenario("fp16"), {"dtype": "float32 (forced on CPU)"}, "p64", "same dtype")
    table = tmp_path / "table.md"
    table.write_text("| a |")
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    files = {"table.md": table, "plots/plot.png": tmp_path / "plot.png"}
    tracker.finish_study(study, "failed", "**note**", files, {"best": 2.0}, reason="one failed")

    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name, run.info.end_time) == (
        "FINISHED",
        "precision/p64",
        1_790_000_010_250,
    )
    assert run.data.metrics["total_latency_s"] == 1.5
    assert run.data.tags["llmtrack.study_id"] == study.study_id
    assert run.data.tags["llmtrack.env.cpu"] == "A CPU"
    assert "mlflow.parentRunId" not in run.data.tags
    assert [m.value for m in client.get_metric_history(run_id, "series/token_latency_ms")] == [1.0, 2.0, 3.0]
    assert artifact(tracker, run_id, "sample.txt") == "Once upon a time"

    statuses = {run.info.run_name: run.info.status for run in scenario_runs(tracker)}
    assert statuses == {
        "precision/p64": "FINISHED",
        "precision/p128": "FAILED",
        "precision/fp16 = p64": "FINISHED",
    }
    ended = client.get_run(study.run_id)
    assert ended.info.status == "FAILED"
    assert ended.data.tags["mlflow.note.content"] == "**note**"
    assert ended.data.tags["llmtrack.outcome"] == "failed"
    assert ended.data.metrics == {"best": 2.0}
    assert artifact(tracker, study.run_id, "table.md") == "| a |"
    assert spooled() == []
    assert messages == []


def test_the_mlflow_experiment_comes_from_argument_variable_or_default(uri, monkeypatch):
    assert Tracker.open(uri).delivery.experiment == "llmtrack"
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from-variable")
    assert Tracker.open(uri).delivery.experiment == "from-variable"
    assert Tracker.open(uri, "from-argument").delivery.experiment == "from-argument"
    number = MlflowClient(uri).get_experiment_by_name("from-argument").experiment_id
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    assert Tracker.open(uri).delivery.experiment == "from-argument"


def test_a_deleted_mlflow_experiment_is_refused_at_once(uri):
    client = MlflowClient(uri)
    client.delete_experiment(client.create_experiment("gone"))
    with pytest.raises(TrackingError, match="restore"):
        Tracker.open(uri, "gone")


@pytest.mark.slow(1)
def test_the_same_outcome_logged_twice_is_one_run(tracker):
    study = start_study(tracker)
    assert tracker.log(study, measurement()) == tracker.log(study, measurement())
    assert len(scenario_runs(tracker)) == 1


@pytest.mark.slow(1)
def test_under_mlflow_run_the_first_study_joins_that_run(uri, tmp_path, monkeypatch):
    client = MlflowClient(uri)
    number = client.create_experiment("theirs", artifact_location=str(tmp_path / "artifacts"))
    outer = client.create_run(number, run_name="nosy-bear-123").info.run_id
    client.log_param(outer, "dtypes", "'fp32 bf16'")
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    tracker = Tracker.open(uri)
    first, second = start_study(tracker), start_study(tracker)
    assert first.run_id == outer
    assert second.run_id != outer
    assert "MLFLOW_RUN_ID" not in os.environ
    tracker.log(first, measurement())
    tracker.finish_study(first, "killed")
    run = client.get_run(outer)
    assert run.info.status == "KILLED"
    assert run.info.run_name == first.name.replace("study", "study of tiny")
    assert first.name.startswith("precision ")
    assert run.data.params["dtypes"] == "'fp32 bf16'"
    assert run.data.params["cfg.dtypes"] == "fp32,bf16"
    assert {item.info.experiment_id for item in all_runs(tracker)} == {number}


def test_a_joined_run_keeps_its_own_name_and_earlier_params(uri, monkeypatch):
    client = MlflowClient(uri)
    outer = client.create_run("0", run_name="nightly").info.run_id
    client.log_param(outer, "cfg.warmup", "7")
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    tracker = Tracker.open(uri)
    start_study(tracker)
    run = client.get_run(outer)
    assert run.info.run_name == "nightly"
    assert run.data.params == {"cfg.warmup": "7", "cfg.dtypes": "fp32,bf16"}
    assert "cfg.warmup" in run.data.tags["llmtrack.omitted"]


def test_a_run_id_of_another_store_is_a_clear_error(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(TrackingError, match="MLFLOW_RUN_ID"):
        Tracker.open(uri)


@pytest.mark.slow(1)
def test_values_over_the_limits_and_odd_names_do_not_fail_a_run(tracker):
    odd = measurement(
        facts={"corpus": "x" * 7_000, "p@th (odd)": "\ud800", "": "empty"},
        metrics={"loss": float("nan"), "perplexity": float("inf"), "a%b": 1.0},
        warnings=("w" * 9_000,),
    )
    run_id = tracker.log(start_study(tracker), odd)
    data = MlflowClient(tracker.tracking_uri).get_run(run_id).data
    assert len(data.params["corpus"]) == 6_000
    assert "loss" not in data.metrics
    assert data.metrics["a_b"] == 1.0
    for word in ("corpus", "loss", "perplexity", "p_th _odd_"):
        assert word in data.tags["llmtrack.omitted"]


@pytest.mark.slow(1)
def test_a_record_larger_than_one_request_is_split(tracker, monkeypatch):
    monkeypatch.setattr(push, "_MAX_REQUEST", 1_000)
    run_id = tracker.log(start_study(tracker), measurement())
    run = MlflowClient(tracker.tracking_uri).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["dtype"] == "float32"
    assert run.data.metrics["total_latency_s"] == 1.5


@pytest.mark.slow(1)
def test_credentials_are_not_tracked_anywhere(uri, tmp_path, monkeypatch, messages):
    monkeypatch.setenv("SOME_API_TOKEN", "s3cr3t-s3cr3t")
    tracker = Tracker.open(uri, notify=messages.append)
    study = start_study(tracker, settings={"tracking": "https://me:s3cr3t@host", "extra": "s3cr3t-s3cr3t"})
    tracker.log(
        study,
        failure(
            reason="cannot reach https://me:s3cr3t@host",
            details="env SOME_API_TOKEN=s3cr3t-s3cr3t",
            facts={"model_id": "https://s3cr3t@host/m"},
        ),
    )
    page = tmp_path / "page.html"
    page.write_text("<a href='https://me:s3cr3t@host'>")
    tracker.finish_study(study, "failed", "see https://me:s3cr3t@host", {"page.html": page})
    store_folder = Path(uri.removeprefix("sqlite:///")).parent
    for path in [*store_folder.rglob("*"), *tracker.spool.folder.rglob("*")]:
        if path.is_file():
            assert b"s3cr3t" not in path.read_bytes(), path


@pytest.mark.slow(1)
def test_a_duplicate_of_a_repeated_request_is_removed(tracker, monkeypatch):
    study = start_study(tracker)
    real = MlflowClient.create_run

    def twice_and_lost(self, *args, **kwargs):
        real(self, *args, **kwargs)
        real(self, *args, **kwargs)
        raise MlflowException("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", twice_and_lost)
        assert tracker.log(study, measurement()) is None
    assert tracker.offline
    assert tracker.sync().sent == 1
    (run,) = scenario_runs(tracker)
    assert run.data.metrics["total_latency_s"] == 1.5


@pytest.mark.slow(1)
def test_a_temporary_failure_of_the_store_loses_nothing(tracker, monkeypatch, spooled, messages):
    study = start_study(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", Mock(side_effect=MlflowException("database is locked")))
        assert tracker.log(study, measurement("a")) is None
        assert tracker.log(study, measurement("b")) is None
    assert tracker.offline
    assert len(messages) == 1
    assert "llmtrack sync" in messages[0]
    assert len(spooled()) == 2
    assert tracker.finish_study(study, "finished") == study.run_id
    assert sorted(run.info.run_name for run in scenario_runs(tracker)) == ["precision/a", "precision/b"]
    assert not tracker.offline
    assert spooled() == []


@pytest.mark.slow(1)
def test_a_rejected_record_does_not_block_the_others(tracker, monkeypatch, messages, spooled):
    study = start_study(tracker)
    real = MlflowClient.log_batch

    def refuse(self, run_id, **kwargs):
        if any(param.value == "bad" for param in kwargs.get("params", ())):
            raise MlflowException("no, with https://me:pw@host", 1000)  # INVALID_PARAMETER_VALUE
        return real(self, run_id, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    assert tracker.log(study, measurement("bad")) is None
    assert tracker.log(study, measurement("good")) is not None
    assert not tracker.offline
    assert "rejected" in messages[0]
    assert "pw" not in messages[0]
    assert len(spooled()) == 1
    result = tracker.sync()
    assert (result.sent, result.left) == (0, 1)
    assert result.problems


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    "error", [MlflowException("odd"), Exception("odd"), ValueError("odd"), OverflowError("odd"), KeyError("odd")]
)
@pytest.mark.parametrize("answers", [True, False])
def test_a_failing_record_blocks_the_others_only_if_the_store_is_unreachable(
    tracker, monkeypatch, spooled, error, answers
):
    study = start_study(tracker)
    log_batch, search = MlflowClient.log_batch, MlflowClient.search_experiments
    down = MlflowException("down")
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_batch", Mock(side_effect=down))
        for name in ("a", "bad", "z"):
            tracker.log(study, measurement(name))
    assert len(spooled()) == 3
    tried = set()

    def refuse(self, run_id, **kwargs):
        tried.add(run_id)
        if not answers or any(param.value == "bad" for param in kwargs.get("params", ())):
            raise error
        return log_batch(self, run_id, **kwargs)

    def ask(self, **kwargs):
        if tried and not answers:
            raise down
        return search(self, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    monkeypatch.setattr(MlflowClient, "search_experiments", ask)
    result = tracker.sync()
    assert (result.sent, result.left) == ((2, 1) if answers else (0, 3))
    assert "odd" in result.problems[0]
    assert answers or len(tried) == 1, "a store that is away is not asked for each record"


@pytest.mark.slow(1)
def test_artifacts_that_fail_leave_a_complete_run_and_are_sent_later(tracker, monkeypatch):
    study = start_study(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(push, "_upload", Mock(side_effect=OSError("no space")))
        tracker.log(study, measurement())
    (run,) = scenario_runs(tracker)
    assert run.info.status == "FINISHED"
    assert tracker.sync().sent == 1
    assert len(scenario_runs(tracker)) == 1
    assert artifact(tracker, run.info.run_id, "sample.txt")


@pytest.mark.slow(8)
def test_two_processes_sync_one_spool_exactly_once(tracker, monkeypatch, spooled):
    study = start_study(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_run", Mock(side_effect=MlflowException("down")))
        for index in range(12):
            tracker.log(study, measurement(f"s{index}"))
    at_once(sync.sync, tracker.spool.folder)
    names = sorted(run.data.params["scenario"] for run in scenario_runs(tracker))
    assert names == sorted(f"s{i}" for i in range(12))
    assert spooled() == []


@pytest.mark.slow(1)
def test_records_can_be_sent_to_another_store(tracker, monkeypatch, template_database, tmp_path, spooled):
    study = start_study(tracker)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_terminated", Mock(side_effect=OSError("down")))
        tracker.log(study, measurement())
    other = tmp_path / "other.db"
    shutil.copyfile(template_database, other)
    assert sync.sync(tracker.spool.folder, f"sqlite:///{other}").sent == 1
    client = MlflowClient(f"sqlite:///{other}")
    number = client.get_experiment_by_name("llmtrack").experiment_id
    assert [run.info.run_name for run in client.search_runs([number])] == ["precision/p64"]


def test_missing_credentials_of_a_record_are_requested(tracker, messages):
    study = start_study(tracker)
    tracker.delivery._client, tracker.delivery.tracking_uri = None, "http://me:pw@127.0.0.1:9"
    assert tracker.log(study, measurement()) is None
    assert all("pw" not in line for line in messages)
    result = sync.sync(tracker.spool.folder)
    assert (result.sent, result.left) == (0, 1)
    assert "MLFLOW_TRACKING_URI" in result.problems[0]


def test_credentials_are_restored_from_the_environment(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:pw@host:5000")
    assert sync.with_credentials("http://***@host:5000") == "http://me:pw@host:5000"
    assert sync.with_credentials("http://other:5000") == "http://other:5000"


@pytest.mark.slow(1)
def test_a_study_that_starts_offline_is_complete_after_sync(uri, tmp_path, messages):
    """The server is a closed port; its records are then sent to a database."""
    tracker = Tracker.open("http://127.0.0.1:9", spool=tmp_path / "spool", notify=messages.append)
    assert tracker.offline
    assert len(messages) == 1
    study = start_study(tracker)
    assert (study.run_id, study.experiment_id) == (None, None)
    assert tracker.log(study, measurement()) is None
    plot = tmp_path / "plot.png"
    plot.write_bytes(b"\x89PNG")
    assert tracker.finish_study(study, "finished", "note", {"plot.png": plot}) is None
    plot.unlink()
    assert len(tracker.spool.names()) == 2
    assert sync.sync(tmp_path / "spool", uri).sent == 2
    tracker = Tracker.open(uri, spool=tmp_path / "spool")
    runs = {run.info.run_name: run for run in all_runs(tracker)}
    ended = study.name.replace("study", "study of tiny")
    assert set(runs) == {ended, "precision/p64"}
    assert runs[ended].info.status == "FINISHED"
    assert runs[ended].data.params["cfg.warmup"] == "1"
    names = [item.path for item in MlflowClient(uri).list_artifacts(runs[ended].info.run_id)]
    assert names == ["environment.json", "plot.png"]


@pytest.mark.slow(2)
def test_tracking_imports_neither_torch_nor_anything_heavy_at_start():
    code = (
        "import sys, llmtrack.tracking.write.tracker, llmtrack.tracking.read.query, llmtrack.tracking.environment\n"
        "print([name for name in ('torch', 'transformers', 'mlflow', 'pandas') if name in sys.modules])\n"
    )
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": with_folders(root)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.slow(1)
def test_artifacts_that_fail_are_reported_as_files_not_as_an_unreachable_store(
    tracker, monkeypatch, messages, tmp_path, spooled
):
    study = start_study(tracker)
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    with monkeypatch.context() as patch:
        patch.setattr(push, "_upload", Mock(side_effect=MlflowException("no proxy")))
        assert tracker.log(study, measurement()) is not None
        assert tracker.log(study, failure("p128")) is not None
        assert tracker.finish_study(study, "failed", "n", {"plot.png": tmp_path / "plot.png"}) == study.run_id
    assert not tracker.offline
    run, whole = messages
    assert "but not sample.txt, samples.json, warnings.txt (" in run
    assert "plot.png" in whole
    assert all("no proxy" in line and "cannot be reached" not in line for line in messages)
    assert len(spooled()) == 3
    assert tracker.sync().left == 0
    assert Path(MlflowClient(tracker.tracking_uri).download_artifacts(study.run_id, "plot.png")).is_file()


@pytest.mark.slow(2)
def test_a_missing_file_is_reported_and_the_rest_tracked(tracker, messages, tmp_path):
    study = start_study(tracker)
    (tmp_path / "here.txt").write_text("here")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    files = {name: str(tmp_path / name) for name in ("here.txt", "dangling", "never")}
    run_id = tracker.log(study, measurement(files=files))
    assert artifact(tracker, run_id, "here.txt") == "here"
    assert messages == ["precision/p64: dangling, never cannot be tracked: no such file any more"]
