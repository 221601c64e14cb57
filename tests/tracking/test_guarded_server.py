"""A real `mlflow server` that requires a password and serves no artifacts."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner
from mlflow import MlflowClient

from llmtrack.cli import main
from llmtrack.errors import TrackingError
from llmtrack.report.page.reports import prepare_views
from llmtrack.report.tables.summary import summary_table
from llmtrack.tracking import store
from llmtrack.tracking.read.query import runs, studies, tracked_runs
from llmtrack.tracking.views import existing_views
from llmtrack.tracking.write.tracker import Tracker
from tests.conftest import HANG_S
from tests.tracking.conftest import Server
from tests.tracking.samples import ENVIRONMENT, measurement

PASSWORD = "a password of 24 letters"

pytestmark = [
    pytest.mark.slow(20),
    pytest.mark.skipif(importlib.util.find_spec("flask_wtf") is None, reason="`--app-name basic-auth` needs Flask-WTF"),
]


@pytest.fixture(scope="module")
def guarded(template_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose artifacts are on a disk that clients cannot write to."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "mlflow.db").write_bytes(template_database.read_bytes())
    (folder / "blocked").write_text("a file where a folder should be")
    (folder / "auth.ini").write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = admin\n"
        f"database_uri = sqlite:///{folder}/auth.db\nadmin_password = {PASSWORD}\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
        # Without it the server hashes the password for each request: 0.2 CPU seconds.
        "auth_cache_ttl_seconds = 600\n"
    )
    server = Server(
        folder,
        options=("--app-name", "basic-auth", "--no-serve-artifacts"),
        artifacts=("--default-artifact-root", str(folder / "blocked" / "artifacts")),
        environment={
            "MLFLOW_AUTH_CONFIG_PATH": str(folder / "auth.ini"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "of this test",
        },
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def _as_admin(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "admin")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", PASSWORD)


@pytest.mark.usefixtures("_as_admin")
def test_unwritable_artifacts_are_reported_and_the_numbers_tracked(guarded, experiment, tmp_path, messages):
    tracker = Tracker.open(guarded.uri, experiment, tmp_path / "spool", messages.append)
    study = tracker.start_study(experiment, "q", {}, ENVIRONMENT)
    assert tracker.log(study, measurement("one")) is not None
    assert tracker.log(study, measurement("two")) is not None
    table = tmp_path / "table.md"
    table.write_text("| a |")
    tracker.finish_study(study, "finished", files={"table.md": table})
    frame = runs(experiment, tracking_uri=guarded.uri)
    assert sorted(frame["scenario"]) == ["one", "two"]
    assert set(frame["status"]) == {"FINISHED"}
    tracked = tracked_runs(experiment, tracking_uri=guarded.uri)
    prepare_views(summary_table(tracked), tracked, "study_id", tracker.delivery.experiment_id, guarded.uri)
    assert existing_views(tracker.delivery.experiment_id, guarded.uri) == {study.study_id}
    assert list(frame["total_latency_s"]) == [1.5, 1.5]
    assert list(studies(experiment, tracking_uri=guarded.uri)["status"]) == ["FINISHED"]
    assert not tracker.offline
    text = "\n".join(messages)
    assert "cannot be reached" not in text
    assert "sample.txt" in text
    assert "table.md" in text
    assert "--no-serve-artifacts" in text
    assert "llmtrack sync" in text
    assert len(messages) == 3, "where files go, then the failures of the first run and the study"
    assert len(tracker.spool.names()) == 3, "the records stay in the spool"


@pytest.mark.parametrize(("user", "password"), [(None, None), ("admin", "wrong"), ("nobody", PASSWORD)])
def test_wrong_credentials_give_one_line_with_the_remedy(guarded, monkeypatch, user, password):
    if user is not None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)
    with pytest.raises(TrackingError, match="requires a user and a password, or rejects the given ones") as refused:
        store.open_store(guarded.uri)
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", guarded.uri)
    done = CliRunner().invoke(main, ["runs"])
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert "MLFLOW_TRACKING_PASSWORD" in done.output
    assert PASSWORD not in done.output


@pytest.mark.usefixtures("_as_admin")
def test_a_missing_permission_gives_one_line_and_loses_nothing(guarded, experiment, monkeypatch, tmp_path, messages):
    MlflowClient(guarded.uri).create_experiment(experiment)
    user = f"reader-{uuid.uuid4().hex[:8]}"
    # As MLflow's own client of it does, which imports the whole server.
    created = {"json": {"username": user, "password": PASSWORD}, "auth": ("admin", PASSWORD)}
    requests.post(f"{guarded.uri}/api/2.0/mlflow/users/create", **created, timeout=HANG_S).raise_for_status()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    tracker = Tracker.open(guarded.uri, experiment, tmp_path / "spool", messages.append)
    tracker.log(tracker.start_study(experiment, "q", {}, ENVIRONMENT), measurement())
    assert not tracker.offline
    assert any("MLflow rejected a record" in line and "Permission denied" in line for line in messages), messages
    rejection = next(line for line in messages if "MLflow rejected a record" in line)
    assert f"the user {user!r} needs the permission EDIT on the experiment {experiment!r}" in rejection
    assert f"ask whoever administers {guarded.uri} for it" in rejection
    assert not any("cannot be reached" in line or "\n" in line for line in messages)
    assert len(tracker.spool.names()) == 2, "the records of study and run stay in the spool"
