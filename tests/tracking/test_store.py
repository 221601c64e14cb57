import logging
import os
import sqlite3
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
from llmtrack.errors import TrackingError
from llmtrack.host import libraries
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.mlflow_experiments import ensure_experiment
from llmtrack.tracking.uri import sqlite_path
from tests.forking import at_once


@pytest.mark.parametrize("uri", ["foo://bar", "postgres://me:geheim@host/db"])
def test_an_unsupported_kind_of_store_is_a_clear_error(uri):
    with pytest.raises(TrackingError, match="has no store for") as caught:
        store.open_store(uri)
    assert "geheim" not in str(caught.value)


def test_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(TrackingError, match="does not exist"):
        store.open_store(f"sqlite:///{tmp_path}/nowhere/a.db")


def test_a_file_that_is_not_a_database_is_a_clear_error(tmp_path):
    (tmp_path / "a.db").write_text("this is no database at all" * 100)
    with pytest.raises(
        TrackingError, match=r"cannot open .*a\.db: the file is not a SQLite database: use another path$"
    ):
        store.open_store(f"sqlite:///{tmp_path}/a.db")


@pytest.mark.parametrize("size", [20_000, 100_000])
def test_a_damaged_database_gives_one_line_with_a_remedy(uri, size):
    store.open_store(uri)
    path = sqlite_path(uri)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(TrackingError, match=r"the database is damaged: restore a backup, or use another store$"):
        store.open_store(uri)


@pytest.mark.parametrize(
    ("revision", "message"),
    [
        ("451aebb31d03", "older MLflow: copy the file, then migrate it by `mlflow db upgrade`"),
        ("ffffffffffff", "newer MLflow than the installed one: upgrade mlflow"),
    ],
)
def test_a_database_of_another_release_is_reported_with_a_remedy(uri, monkeypatch, revision, message):
    with sqlite3.connect(sqlite_path(uri)) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (revision,))
    with pytest.raises(TrackingError, match=message) as caught:
        store.open_store(uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert (doctor._tracking().state, doctor._tracking().text) == ("broken", str(caught.value))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("database is locked", "another program has locked the database: end it, or wait until it has finished"),
        ("database or disk is full", "the disk of the database is full: free some space"),
        ("no such table: runs", "(sqlite3.OperationalError) no such table: runs"),
    ],
)
def test_a_database_error_is_reported_without_its_statement(message, expected):
    error = OperationalError("SELECT 1 FROM runs", {}, sqlite3.OperationalError(message), code="e3q8")
    assert "sqlalche.me" in str(error)
    assert store_errors.one_line(MlflowException(error)) == expected


def test_mlflows_log_of_a_raised_error_is_suppressed(uri, caplog):
    store.connect(uri)
    logger = logging.getLogger("mlflow.store.db.utils")
    logger.addHandler(caplog.handler)
    try:
        logger.error("SQLAlchemy database error. The following exception is caught.")
        logger.warning("something else")
    finally:
        logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"something else"}


def test_a_server_that_is_down_fails_at_once():
    with pytest.raises(store_errors.UnreachableError, match="no answer"):
        store.open_store("http://127.0.0.1:9")


def test_retries_set_by_the_user_are_kept(uri, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "9")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    store.connect(uri)
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "9"
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "30"


@pytest.mark.slow(14)
def test_processes_may_open_a_new_database_at_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/new.db"
    at_once(_create, uri, number=3)
    client = MlflowClient(uri)
    experiments = [item.name for item in client.search_experiments()]
    assert experiments.count("shared") == 1
    assert len(client.search_runs([client.get_experiment_by_name("shared").experiment_id])) == 3


def _create(uri: str) -> None:
    client = store.open_store(uri)
    client.create_run(ensure_experiment(client, "shared"), run_name="run")


def test_reading_creates_no_database(tmp_path):
    with pytest.raises(TrackingError, match="no tracking database"):
        store.open_existing(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()


def test_an_existing_database_is_opened_for_reading(uri):
    assert store.open_existing(uri).search_experiments(max_results=1)


@pytest.mark.parametrize("user", ["reader", None])
def test_a_missing_permission_is_explained_with_whom_to_ask(user, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME", raising=False)
    if user:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user)
    denied = MlflowException("Permission denied", error_code=PERMISSION_DENIED)
    assert denied.error_code == "PERMISSION_DENIED"
    assert store_errors.is_denied(denied)
    assert not store_errors.is_denied(MlflowException("a full disk"))
    message = store_errors.missing_permission("http://name:secret@host:5000", "mine")
    assert message.startswith(f"{'the user ' + repr(user) if user else 'this user'} needs the permission EDIT on")
    assert "the experiment 'mine': ask whoever administers http" in message
    assert "secret" not in message
    assert "needs the permission EDIT" in store_errors.refusal("http://host:5000", denied)


@pytest.mark.parametrize(("setting", "disabled"), [(None, True), ("true", True), ("false", False)])
def test_mlflows_telemetry_is_off_unless_the_user_sets_it(setting, disabled, monkeypatch):
    for name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        monkeypatch.delenv(name, raising=False)
    if setting is not None:
        monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", setting)
    libraries.opt_out_of_telemetry()
    assert MLFLOW_DISABLE_TELEMETRY.get() is disabled


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
def test_mysql_connections_get_time_limits_unless_the_address_has_them(driver, named, added):
    store.bound_silence("mysql+pymysql://user:secret@db:3306/mlflow")
    assert event.contains(Engine, "do_connect", store._limit_mysql)
    arguments = dict(named)
    store._limit_mysql(SimpleNamespace(driver=driver), None, [], arguments)
    assert arguments == {**named, **added}
