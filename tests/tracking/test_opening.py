"""A store is opened within seconds or found away, whatever kind it is; and the lock of a new one is held while it is made only."""

from __future__ import annotations

import contextlib
import time

import pytest

from llmtrack.errors import TrackingError
from llmtrack.tracking import store, store_errors
from llmtrack.tracking.write.delivery import Delivery
from llmtrack.tracking.write.spool import Spool

AWAY = (
    "http://127.0.0.1:1",
    "postgresql://me:pw@127.0.0.1:1/db",
    "mysql+pymysql://127.0.0.1:1/db",
    "mssql+pyodbc://127.0.0.1:1/db",
)


@pytest.mark.parametrize("uri", AWAY)
def test_a_store_that_does_not_answer_is_away_and_its_records_are_kept(uri, tmp_path, said):
    with pytest.raises(store_errors.UnreachableError, match="no answer from"):
        store.open_store(uri)
    delivery = Delivery(uri, "x", Spool(tmp_path), said.append)
    delivery.open()
    assert delivery.offline
    assert len(said) == 1
    assert "\n" not in said[0]
    assert "pw@" not in said[0]


class OperationalError(Exception):
    """As SQLAlchemy raises it."""


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
def test_a_connection_that_is_cut_while_opening_is_a_store_that_is_away(message, kind, monkeypatch):
    def fails(uri):
        raise RuntimeError("wrapped") from OperationalError(message)

    monkeypatch.setattr(store, "_has_tables", fails)
    monkeypatch.setattr(store, "check_reachable", lambda uri: None)
    with pytest.raises(TrackingError) as caught:
        store.open_store("postgresql://me:s3cr3t@127.0.0.1:1/db")
    assert type(caught.value) is kind
    assert "s3cr3t" not in str(caught.value)


def test_a_file_that_cannot_be_opened_is_no_store_that_is_away(tmp_path):
    (tmp_path / "x.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(TrackingError) as caught:
        store.open_store(f"sqlite:///{tmp_path / 'x.db'}")
    assert type(caught.value) is TrackingError


@pytest.mark.slow(3)
def test_the_lock_is_held_while_tables_are_made_and_no_longer(tmp_path, monkeypatch):
    import filelock

    uri, held, asked = f"sqlite:///{tmp_path / 'x.db'}", [], []
    acquire = filelock.FileLock.acquire

    @contextlib.contextmanager
    def noted(lock, *given, **named):
        with acquire(lock, *given, **named):
            held.append(time.monotonic())
            yield
            held.append(None)

    client = store._client

    def counted(uri):
        asked.append(bool(held) and held[-1] is not None)
        return client(uri)

    monkeypatch.setattr(filelock.FileLock, "acquire", noted)
    monkeypatch.setattr(store, "_client", counted)
    assert not store._has_tables(uri)
    store.initialise(uri)
    assert asked == [True, False]
    assert store._has_tables(uri)
    asked.clear()
    store.initialise(uri)
    assert asked == [False]
