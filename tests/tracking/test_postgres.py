"""A real PostgreSQL that is down, frozen or cut off costs seconds and one line, and loses nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from llmtrack.tracking import store
from llmtrack.tracking.read.query import runs, studies
from llmtrack.tracking.write import sync
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking import team_server
from tests.tracking.conftest import Line, free_port
from tests.tracking.samples import ENVIRONMENT, measurement

PASSWORD = "s3cr3t"

pytestmark = [
    pytest.mark.slow(15),
    pytest.mark.skipif(team_server.PROGRAMS is None, reason="PostgreSQL's initdb is not here: apt install postgresql"),
    pytest.mark.skipif(
        not importlib.util.find_spec("psycopg2"),
        reason="PostgreSQL's driver is not installed: pip install psycopg2-binary",
    ),
]


@pytest.fixture(scope="module")
def database() -> Iterator[int]:
    """The port of a PostgreSQL with MLflow's tables."""
    port = free_port()
    with team_server.postgres(port, PASSWORD):
        command = ["createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "mlflow", "mlflow"]
        subprocess.run(command, check=True, env=team_server.environment({"PGPASSWORD": PASSWORD}))
        store.initialise(address(port))
        yield port


def address(port: int) -> str:
    return f"postgresql+psycopg2://mlflow:{PASSWORD}@127.0.0.1:{port}/mlflow"


@pytest.fixture
def line(database: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    line = Line(database)
    line.uri = address(line.port)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", line.uri)  # the spool keeps no credentials
    yield line
    line.down()


@pytest.fixture
def slept(monkeypatch):
    """Record the seconds of each sleep, as between retries, without sleeping."""
    seconds: list[float] = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def track(tracker, *names):
    study = tracker.start_study("pg", "q", {}, ENVIRONMENT)
    for name in names:
        tracker.log(study, measurement(name))
    tracker.finish_study(study, "finished", "note")
    return study


# A connection asks whether there are tables, the next ones are MLflow's own.
@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_a_connection_cut_while_opening_means_unreachable(line, after, tmp_path, messages, slept, caplog):
    line.cut(after)
    tracker = Tracker.open(line.uri, f"cut-{after}", tmp_path / "spool", messages.append)
    study = track(tracker, "one", "two")
    assert sum(slept) < 10
    assert len(messages) == tracker.offline, messages
    assert not any("\n" in message or PASSWORD in message for message in messages)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    line.restore()
    assert sync.sync(tmp_path / "spool").left == 0
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=0, left=0)
    table = runs(experiment=f"cut-{after}", tracking_uri=line.uri)
    assert sorted(table["scenario"]) == ["one", "two"]
    assert set(table["study_id"]) == {study.study_id}
    assert list(studies(f"cut-{after}", tracking_uri=line.uri)["status"]) == ["FINISHED"]


def test_a_database_that_is_down_at_the_start_means_offline(tmp_path, messages, slept, database):
    port = free_port()
    tracker = Tracker.open(address(port), "down", tmp_path / "spool", messages.append)
    track(tracker, "one")
    assert tracker.offline
    assert sum(slept) < 10
    (message,) = messages
    assert "cannot be reached" in message
    assert PASSWORD not in message
    assert "\n" not in message
    assert sync.sync(tmp_path / "spool").left == 2


def test_connections_cut_during_a_study_lose_and_duplicate_nothing(line, tmp_path, messages, slept, caplog):
    tracker = Tracker.open(line.uri, "mid", tmp_path / "spool", messages.append)
    study = tracker.start_study("mid", "q", {}, ENVIRONMENT)
    assert tracker.log(study, measurement("before")) is not None
    line.cut()
    assert tracker.log(study, measurement("during-1")) is None
    assert tracker.log(study, measurement("during-2")) is None
    assert tracker.finish_study(study, "finished", "note") is None
    assert sum(slept) < 10
    (message,) = messages
    assert "cannot be reached" in message
    assert "\n" not in message
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert sync.sync(tmp_path / "spool").left == 3
    line.restore()
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=3, left=0)
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=0, left=0)
    table = runs(experiment="mid", tracking_uri=line.uri)
    assert sorted(table["scenario"]) == ["before", "during-1", "during-2"]
    assert set(table["status"]) == {"FINISHED"}
    assert list(studies("mid", tracking_uri=line.uri)["status"]) == ["FINISHED"]


@contextlib.contextmanager
def frozen(port: int) -> Iterator[None]:
    """Suspend all processes of the database, as in a swapping machine or a suspended container."""
    (server,) = {
        socket.pid
        for socket in psutil.net_connections("inet")
        if socket.status == "LISTEN" and socket.laddr.port == port
    }
    processes = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            process.resume()


def test_a_database_frozen_during_a_study_costs_seconds_and_one_line(
    database, tmp_path, messages, slept, caplog, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address(database))
    monkeypatch.setattr(store, "SILENCE_S", 1.0)
    monkeypatch.setattr(store, "CONNECT_S", 1.0)
    tracker = Tracker.open(address(database), "frozen", tmp_path / "spool", messages.append)
    study = tracker.start_study("frozen", "q", {}, ENVIRONMENT)
    assert tracker.log(study, measurement("before")) is not None
    with frozen(database):
        assert tracker.log(study, measurement("during-1")) is None
        assert tracker.log(study, measurement("during-2")) is None
        assert tracker.finish_study(study, "finished", "note") is None
    assert sum(slept) < 10
    (message,) = messages
    assert "cannot be reached" in message
    assert "did not answer within 1 s" in message
    assert PASSWORD not in message
    assert "\n" not in message
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=3, left=0)
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=0, left=0)
    table = runs(experiment="frozen", tracking_uri=address(database))
    assert sorted(table["scenario"]) == ["before", "during-1", "during-2"]
    assert list(studies("frozen", tracking_uri=address(database))["status"]) == ["FINISHED"]


def test_a_database_frozen_at_the_start_means_offline(database, tmp_path, messages, slept, monkeypatch):
    monkeypatch.setattr(store, "SILENCE_S", 1.0)
    monkeypatch.setattr(store, "CONNECT_S", 1.0)
    with frozen(database):
        tracker = Tracker.open(address(database), "frozen-first", tmp_path / "spool", messages.append)
        track(tracker, "one")
    assert tracker.offline
    (message,) = messages
    assert "cannot be reached" in message
    assert "\n" not in message


def test_connections_to_other_databases_wait_as_before(database, monkeypatch):
    import psycopg2

    monkeypatch.setattr(store, "SILENCE_S", 0.2)
    store.connect(address(database))
    with contextlib.closing(psycopg2.connect(f"{address(database).replace('+psycopg2', '')[:-7]}/postgres")) as other:
        cursor = other.cursor()
        cursor.execute("select pg_sleep(0.6)")
        assert cursor.fetchone() == ("",)
    ours = psycopg2.connect(address(database).replace("+psycopg2", ""))
    with contextlib.closing(ours), pytest.raises(psycopg2.OperationalError, match="did not answer within 0 s"):
        ours.cursor().execute("select pg_sleep(0.6)")
