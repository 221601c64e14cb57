"""Opening a store of any kind succeeds or fails within seconds; a lock is held only while tables are created."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import time

import pytest
from mlflow import MlflowClient

import llmtrack
from llmtrack.errors import TrackingError
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.write.delivery import Delivery
from llmtrack.tracking.write.spool import Spool

UNREACHABLE = (
    "http://127.0.0.1:1",
    "postgresql://me:pw@127.0.0.1:1/db",
    "mysql+pymysql://127.0.0.1:1/db",
    "mssql+pyodbc://127.0.0.1:1/db",
)


@pytest.mark.parametrize("uri", UNREACHABLE)
def test_an_unreachable_store_makes_the_delivery_go_offline(uri, tmp_path, messages):
    with pytest.raises(store_errors.UnreachableError, match="no answer from"):
        store.open_store(uri)
    delivery = Delivery(uri, "x", Spool(tmp_path), messages.append)
    delivery.open()
    assert delivery.offline
    assert len(messages) == 1
    assert "\n" not in messages[0]
    assert "pw@" not in messages[0]


@pytest.mark.parametrize("content", ["of another program", "empty"])
def test_reading_writes_nothing_into_a_database_without_runs(content, tmp_path):
    path = tmp_path / "app.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        if content != "empty":
            database.execute("CREATE TABLE customers (name TEXT)")
            database.commit()
    path.touch()
    before = path.read_bytes()
    uri = f"sqlite:///{path}"
    for read in (
        lambda: llmtrack.runs(tracking_uri=uri),
        lambda: llmtrack.compare("latest", "latest", tracking_uri=uri),
        lambda: store.open_existing(uri),
    ):
        with pytest.raises(TrackingError, match="is not a database of MLflow: name the store"):
            read()
    assert path.read_bytes() == before


class OperationalError(Exception):
    """Named like the one of SQLAlchemy."""


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("server closed the connection unexpectedly", store_errors.UnreachableError),
        ("could not connect to server: Connection refused", store_errors.UnreachableError),
        ("Lost connection to MySQL server during query", store_errors.UnreachableError),
        ("the database system is starting up", store_errors.UnreachableError),
        ('password authentication failed for user "me"', TrackingError),
        ('database "db" does not exist', TrackingError),
        ("Access denied for user 'me'", TrackingError),
    ],
)
def test_a_connection_failure_while_opening_means_unreachable_and_a_refusal_does_not(message, kind, monkeypatch):
    def fails(uri):
        raise RuntimeError("wrapped") from OperationalError(message)

    monkeypatch.setattr(store, "_has_tables", fails)
    monkeypatch.setattr(store, "check_reachable", lambda uri: None)
    with pytest.raises(TrackingError) as caught:
        store.open_store("postgresql://me:s3cr3t@127.0.0.1:1/db")
    assert type(caught.value) is kind
    assert "s3cr3t" not in str(caught.value)


def test_an_unopenable_file_does_not_count_as_unreachable(tmp_path):
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(TrackingError) as caught:
        store.open_store(f"sqlite:///{tmp_path / 'x.db'}")
    assert type(caught.value) is TrackingError


def test_the_lock_is_held_only_while_tables_are_created(tmp_path, monkeypatch, template_database):
    import filelock

    path, held, clients = tmp_path / "x.db", [], []
    uri = f"sqlite:///{path}"
    acquire = filelock.FileLock.acquire

    @contextlib.contextmanager
    def noted(lock, *args, **options):
        with acquire(lock, *args, **options):
            held.append(time.monotonic())
            yield
            held.append(None)

    def client(uri):
        """Create the tables, as MLflow's client does, without its migrations."""
        clients.append(bool(held) and held[-1] is not None)
        shutil.copyfile(template_database, path)
        return MlflowClient(uri)

    monkeypatch.setattr(filelock.FileLock, "acquire", noted)
    monkeypatch.setattr(store, "_client", client)
    assert not store._has_tables(uri)
    store.initialise(uri)
    assert clients == [True, False]
    assert store._has_tables(uri)
    clients.clear()
    store.initialise(uri)
    assert clients == [False]
