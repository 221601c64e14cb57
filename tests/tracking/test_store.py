import logging
import os
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest
from mlflow import MlflowClient
from mlflow.environment_variables import MLFLOW_DISABLE_TELEMETRY
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import PERMISSION_DENIED
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from llmtrack.cli import doctor
from llmtrack.errors import TrackingError, UsageError
from llmtrack.host import libraries
from llmtrack.host.packages import installed_version
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.read.artifacts import artifact_text, local_artifact
from llmtrack.tracking.store import resolve_tracking_uri
from tests.forking import at_once


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("sqlite:///a.db", "sqlite:///{cwd}/a.db"),
        ("sqlite:///sub/a.db?timeout=5", "sqlite:///{cwd}/sub/a.db?timeout=5"),
        ("sqlite:////abs/a.db", "sqlite:////abs/a.db"),
        ("a.db", "sqlite:///{cwd}/a.db"),
        ("http://host:5000", "http://host:5000"),
        ("postgresql+psycopg://u:p@h/d", "postgresql+psycopg://u:p@h/d"),
        ("databricks", "databricks"),
    ],
)
def test_a_uri_means_the_same_in_every_folder(given, expected, tmp_path):
    assert resolve_tracking_uri(given) == expected.format(cwd=tmp_path)


def test_the_default_is_the_environment_and_then_the_working_directory(tmp_path, monkeypatch):
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/other.db"


@pytest.mark.parametrize("given", ["mlruns", "./mlruns", "file:///tmp/mlruns", "sqlite://", "sqlite:///:memory:"])
def test_stores_that_keep_nothing_are_refused(given):
    with pytest.raises(UsageError, match="tracking URI"):
        resolve_tracking_uri(given)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("sqlite://mlflow.db", "sqlite:///mlflow.db"),
        ("sqlite:mlflow.db", "sqlite:///mlflow.db"),
        ("http://", "http://HOST:PORT"),
        ("http:localhost:5000", "http://HOST:PORT"),
        ("http://localhost:port", "http://HOST:PORT"),
        ("https://localhost:99999", "https://HOST:PORT"),
        ("http://[::1", "http://HOST:PORT"),
        ("http://me:geheim@:5000", "http://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_refused_with_how_one_looks(given, remedy):
    with pytest.raises(UsageError, match=remedy) as caught:
        resolve_tracking_uri(given)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("given", ["http://localhost", "https://me:pw@[::1]:5000/path", "postgresql://h/d"])
def test_an_address_stays_as_it_is(given):
    assert resolve_tracking_uri(given) == given


@pytest.mark.parametrize("given", ["foo://bar", "postgres://me:geheim@host/db"])
def test_a_kind_of_store_that_mlflow_has_not_is_a_clear_error(given):
    with pytest.raises(TrackingError, match="has no store for") as caught:
        store.open_store(given)
    assert "geheim" not in str(caught.value)


@pytest.mark.slow(4)
def test_a_new_experiment_keeps_its_artifacts_beside_the_database(uri):
    client = store.open_store(uri)
    number = store.ensure_experiment(client, "my experiment/1")
    location = client.get_experiment(number).artifact_location
    assert Path(location).is_absolute()
    assert Path(location).parent == store.sqlite_path(uri).parent / "mlartifacts"
    assert store.ensure_experiment(client, "my experiment/1") == number


@pytest.mark.parametrize("name", ["a%20b", "50 % ü'\"", "what?#now", "now#then", "plain"])
def test_artifacts_lie_beside_the_database_whatever_its_folder_is_called(template_database, tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    shutil.copyfile(template_database, folder / "mlflow.db")
    if "?" in name and installed_version("sqlalchemy").startswith("2.0."):
        # The last for Python 3.10 takes what follows for options.
        with pytest.raises(TrackingError, match=r"cannot address .*: rename the file or folder with a \? in its name"):
            resolve_tracking_uri(str(folder / "mlflow.db"))
        return
    uri = resolve_tracking_uri(str(folder / "mlflow.db"))
    client = store.open_store(uri)
    run_id = client.create_run(store.ensure_experiment(client, "here")).info.run_id
    client.log_text(run_id, "text", "a b%20.txt")
    (found,) = folder.glob("mlartifacts/*/*/artifacts/*")
    assert local_artifact(run_id, "a b%20.txt", uri) == found
    assert artifact_text(run_id, "a b%20.txt", uri) == "text"


def test_a_deleted_experiment_is_a_clear_error(uri):
    client = store.open_store(uri)
    number = store.ensure_experiment(client, "gone")
    client.delete_experiment(number)
    with pytest.raises(TrackingError, match=f"mlflow experiments restore --experiment-id {number}"):
        store.ensure_experiment(client, "gone")


def test_an_experiment_made_by_another_process_meanwhile_is_taken(uri, monkeypatch):
    client = store.open_store(uri)
    number = store.ensure_experiment(client, "race")
    real, answers = client.get_experiment_by_name, [None]
    monkeypatch.setattr(client, "get_experiment_by_name", lambda name: answers.pop() if answers else real(name))
    assert store.ensure_experiment(client, "race") == number


def test_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(TrackingError, match="does not exist"):
        store.open_store(f"sqlite:///{tmp_path}/nowhere/a.db")


def test_a_file_that_is_no_database_is_a_clear_error(tmp_path):
    (tmp_path / "a.db").write_text("this is no database at all" * 100)
    with pytest.raises(
        TrackingError, match=r"cannot open .*a\.db: the file is not a SQLite database: use another path$"
    ):
        store.open_store(f"sqlite:///{tmp_path}/a.db")


@pytest.mark.parametrize("kept", [20_000, 100_000])
def test_a_damaged_database_is_one_line_with_a_remedy(uri, kept):
    store.open_store(uri)
    path = store.sqlite_path(uri)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TrackingError, match=r"the database is damaged: restore a backup, or use another store$"):
        store.open_store(uri)


@pytest.mark.parametrize(
    ("revision", "told"),
    [
        ("451aebb31d03", "older MLflow: copy the file, then migrate it by `mlflow db upgrade`"),
        ("ffffffffffff", "newer MLflow than the installed one: upgrade mlflow"),
    ],
)
def test_a_database_of_another_release_says_which_and_what_to_do(uri, monkeypatch, revision, told):
    with sqlite3.connect(store.sqlite_path(uri)) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    with pytest.raises(TrackingError, match=told) as caught:
        store.open_store(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert (doctor._tracking().state, doctor._tracking().text) == ("broken", str(caught.value))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("database is locked", "another program has locked the database: end it, or wait until it has finished"),
        ("database or disk is full", "the disk of the database is full: free some space"),
        ("no such table: runs", "(sqlite3.OperationalError) no such table: runs"),
    ],
)
def test_what_a_database_says_is_told_without_its_statement(said, told):
    error = OperationalError("SELECT 1 FROM runs", {}, sqlite3.OperationalError(said), code="e3q8")
    assert "sqlalche.me" in str(error)
    assert store_errors.one_line(MlflowException(error)) == told


def test_what_mlflow_logs_of_an_error_that_it_raises_is_not_printed_as_well(uri, caplog):
    store.connect(uri)
    logger = logging.getLogger("mlflow.store.db.utils")
    logger.addHandler(caplog.handler)
    try:
        logger.error("SQLAlchemy database error. The following exception is caught.")
        logger.warning("something else")
    finally:
        logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"something else"}


def test_a_server_that_is_down_is_known_at_once():
    """By its port: MLflow asks for minutes, and says it in other words."""
    with pytest.raises(store_errors.UnreachableError, match="no answer"):
        store.open_store("http://127.0.0.1:9")


def test_the_users_own_retries_are_kept(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "9")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    store.connect(uri)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "9"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "30"


@pytest.mark.slow(14)
def test_two_processes_may_open_a_new_database_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/new.db"
    at_once(_create, uri, number=3)
    client = MlflowClient(uri)
    experiments = [item.name for item in client.search_experiments()]
    assert experiments.count("shared") == 1
    assert len(client.search_runs([client.get_experiment_by_name("shared").experiment_id])) == 3


def _create(uri: str) -> None:
    client = store.open_store(uri)
    client.create_run(store.ensure_experiment(client, "shared"), run_name="run")


def test_reading_makes_no_database(tmp_path):
    with pytest.raises(TrackingError, match="no tracking database"):
        store.open_existing(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


def test_a_read_only_database_says_so(uri, template_database):
    path = store.sqlite_path(uri)
    shutil.copyfile(template_database, path)
    assert store.open_existing(uri).search_experiments(max_results=1)


@pytest.mark.parametrize("user", ["reader", None])
def test_who_lacks_a_permission_is_told_whom_to_ask_for_what(user, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    if user:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    denied = MlflowException("Permission denied", error_code=PERMISSION_DENIED)
    assert denied.error_code == "PERMISSION_DENIED"
    assert store_errors.is_denied(denied)
    assert not store_errors.is_denied(MlflowException("a full disk"))
    told = store_errors.missing_permission("http://name:secret@host:5000", "mine")
    assert told.startswith(f"{'the user ' + repr(user) if user else 'this user'} needs the permission EDIT on")
    assert "the experiment 'mine': ask whoever administers http" in told
    assert "secret" not in told
    assert "needs the permission EDIT" in store_errors.refusal("http://host:5000", denied)


@pytest.mark.parametrize(("asked", "told"), [(None, True), ("true", True), ("false", False)])
def test_mlflow_tells_nobody_of_our_processes_unless_it_is_asked_to(asked, told, monkeypatch):
    """Its thread changes the environment while requests read it."""
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    if asked is not None:
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", asked)
    libraries.opt_out_of_telemetry()
    assert MLFLOW_DISABLE_TELEMETRY.get() is told


MYSQL_LIMITS = {"connect_timeout": 5, "read_timeout": 30, "write_timeout": 30}


@pytest.fixture
def without_limits(monkeypatch):
    monkeypatch.setattr(store, "_bounded", set())
    yield
    if event.contains(Engine, "do_connect", store._limit_mysql):
        event.remove(Engine, "do_connect", store._limit_mysql)


@pytest.mark.usefixtures("without_limits")
@pytest.mark.parametrize(
    ("driver", "named", "added"),
    [
        ("pymysql", {"host": "db", "port": 3306, "database": "mlflow"}, MYSQL_LIMITS),
        ("mysqldb", {"host": "db", "port": 3306, "db": "mlflow"}, MYSQL_LIMITS),
        (
            "pymysql",
            {"host": "db", "port": 3306, "database": "mlflow", "read_timeout": 600},
            {**MYSQL_LIMITS, "read_timeout": 600},
        ),
        ("pymysql", {"host": "db", "port": 3306, "database": "other"}, {}),
        ("psycopg2", {"host": "db", "port": 3306, "database": "mlflow"}, {}),
    ],
)
def test_connections_of_mysql_get_limits_unless_the_address_sets_its_own(driver, named, added):
    store.bound_silence("mysql+pymysql://user:secret@db:3306/mlflow")
    assert event.contains(Engine, "do_connect", store._limit_mysql)
    given = dict(named)
    store._limit_mysql(SimpleNamespace(driver=driver), None, [], given)
    assert given == {**named, **added}
