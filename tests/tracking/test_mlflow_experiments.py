"""MLflow experiments are created once, with their artifacts beside the database."""

import shutil
from pathlib import Path

import pytest

from llmtrack.errors import TrackingError
from llmtrack.host.packages import installed_version
from llmtrack.tracking import store
from llmtrack.tracking.mlflow_experiments import ensure_experiment
from llmtrack.tracking.read.artifacts import artifact_text, local_artifact
from llmtrack.tracking.uri import resolve_tracking_uri, sqlite_path


@pytest.mark.slow(4)
def test_a_new_experiment_has_its_artifacts_beside_the_database(uri):
    client = store.open_store(uri)
    number = ensure_experiment(client, "my experiment/1")
    location = client.get_experiment(number).artifact_location
    assert Path(location).is_absolute()
    assert Path(location).parent == sqlite_path(uri).parent / "mlartifacts"
    assert ensure_experiment(client, "my experiment/1") == number


@pytest.mark.parametrize("name", ["a%20b", "50 % ü'\"", "what?#now", "now#then", "plain"])
def test_artifacts_are_beside_the_database_in_folders_of_any_name(template_database, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copyfile(template_database, folder / "mlflow.db")
    if "?" in name and installed_version("sqlalchemy").startswith("2.0."):
        # SQLAlchemy 2.0, the last for Python 3.10, parses the rest as options.
        with pytest.raises(TrackingError, match=r"cannot address .*: rename the file or folder with a \? in its name"):
            resolve_tracking_uri(str(folder / "mlflow.db"))
        return
    uri = resolve_tracking_uri(str(folder / "mlflow.db"))
    client = store.open_store(uri)
    run_id = client.create_run(ensure_experiment(client, "here")).info.run_id
    client.log_text(run_id, "text", "a b%20.txt")
    (path,) = folder.glob("mlartifacts/*/*/artifacts/*")
    assert local_artifact(run_id, "a b%20.txt", uri) == path
    assert artifact_text(run_id, "a b%20.txt", uri) == "text"


def test_a_deleted_experiment_is_a_clear_error(uri):
    client = store.open_store(uri)
    number = ensure_experiment(client, "gone")
    client.delete_experiment(number)
    with pytest.raises(TrackingError, match=f"mlflow experiments restore --experiment-id {number}"):
        ensure_experiment(client, "gone")


def test_an_experiment_created_by_another_process_meanwhile_is_used(uri, monkeypatch):
    client = store.open_store(uri)
    number = ensure_experiment(client, "race")
    real, answers = client.get_experiment_by_name, [None]
    monkeypatch.setattr(client, "get_experiment_by_name", lambda name: answers.pop() if answers else real(name))
    assert ensure_experiment(client, "race") == number
