"""Initialise and open the tracking store; a store that does not answer fails within seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sqlite3
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from llmtrack.errors import TrackingError
from llmtrack.host.secrets import redact
from llmtrack.spec.serialization import digest
from llmtrack.tracking.store_errors import (
    UnreachableError,
    is_connection_failure,
    is_permanent,
    one_line,
    refusal,
)
from llmtrack.tracking.uri import is_database, open_read_only, resolve_tracking_uri, sqlite_path

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from mlflow import MlflowClient

CONNECT_S = 5.0
SILENCE_S = 30.0
"""Longest silence of a server during a statement, equal to the HTTP timeout in `_DEFAULTS`."""

# MLflow's own defaults block a call for about four minutes if the server is down, and print the server's address with
# its credentials at the end of a run.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_ATTEMPTS = 3
_INITIALISE_TIMEOUT_S = 120.0
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
# Arguments of MySQL's drivers.
_MYSQL = {"connect_timeout": round(CONNECT_S), "read_timeout": round(SILENCE_S), "write_timeout": round(SILENCE_S)}

# Host, port and name of the databases whose silence is bounded.
_bounded: set[tuple[str | None, int | None, str | None]] = set()


def connect(uri: str) -> MlflowClient:
    """Connect to an initialised store, with bounded waits unless the user has configured them.

    Raises:
        TrackingError: the database cannot be opened, its driver is missing, or MLflow does not support the store.
    """
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # MLflow also logs a traceback of the errors that it raises; they are reported in one line.
    logging.getLogger("mlflow.store.db.utils").addFilter(_is_below_error)
    initialise(uri)
    try:
        return _client(uri)
    except Exception as error:
        raise TrackingError(
            f"MLflow has no store for {redact(uri)}: use sqlite:///mlflow.db, or a server's http:// address"
            if type(error).__name__.startswith("Unsupported")
            else f"cannot use {redact(uri)}: {one_line(error)}"
        ) from error


def open_store(uri: str) -> MlflowClient:
    """Connect to a store for writing, which creates a missing database; fail within seconds if it does not answer.

    Raises:
        UnreachableError: nothing answers.
        TrackingError: the store refuses: wrong credentials, no such folder, a missing driver.
    """
    check_reachable(uri)
    client = connect(uri)
    if is_database(uri):
        return client  # `initialise` has just read it.
    try:
        client.search_experiments(max_results=1)
    except Exception as error:
        kind = TrackingError if is_permanent(error) else UnreachableError
        raise kind(refusal(uri, error)) from error
    return client


def open_existing(tracking_uri: str | None = None) -> MlflowClient:
    """Connect to a store for reading, which creates no database; fail within seconds if it does not answer.

    Raises:
        UnreachableError: nothing answers.
        TrackingError: there is no such database, or the store refuses.
    """
    uri = resolve_tracking_uri(tracking_uri)
    path = sqlite_path(uri)
    if path is not None and not path.is_file():
        raise TrackingError(
            f"there is no tracking database {path}: run an experiment first, or name the store "
            "(MLFLOW_TRACKING_URI or tracking_uri)"
        )
    if path is not None and not _is_tracking_database(path, uri):
        raise TrackingError(f"{path} is not a database of MLflow: name the store (MLFLOW_TRACKING_URI or tracking_uri)")
    return open_store(uri)


def initialise(uri: str) -> None:
    """Create the tables of a new database under a lock, since concurrent processes would crash.

    The lock is only held while tables are created, as imports and the schema check take seconds. No-op for a server.

    Raises:
        UnreachableError: nothing answers, or the connection is lost.
        TrackingError: the database cannot be opened, or its driver is missing.
    """
    if not is_database(uri):
        return
    from filelock import Timeout

    lock = user_lock("store", uri)
    try:
        import_module("mlflow.store.tracking.sqlalchemy_store")
        bound_silence(uri)
        with _quiet_opening():
            with lock.acquire(timeout=_INITIALISE_TIMEOUT_S):
                if not _has_tables(uri):
                    _client(uri).search_experiments(max_results=1)
            _client(uri).search_experiments(max_results=1)
    except Timeout:
        raise TrackingError(
            f"{redact(uri)} is being initialised by another process for {_INITIALISE_TIMEOUT_S:.0f} s: try again later"
        ) from None
    except Exception as error:
        kind = UnreachableError if sqlite_path(uri) is None and is_connection_failure(error) else TrackingError
        raise kind(f"cannot open {redact(uri)}: {one_line(error)}") from error


def check_reachable(uri: str) -> None:
    """Check that a server's port answers within seconds, or that the folder of a database exists.

    Raises:
        UnreachableError: nothing answers.
        TrackingError: the database's folder is missing.
    """
    if (path := sqlite_path(uri)) is not None:
        if not path.parent.is_dir():
            raise TrackingError(f"cannot open {path}: its folder does not exist; create it or use another path")
        return
    scheme, host, port = _server(uri)
    if scheme not in _PORTS or not host:
        return
    if scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # The proxy connects; reachability cannot be checked here.
    try:
        socket.create_connection((host, port or _PORTS[scheme]), timeout=CONNECT_S).close()
    except OSError as error:
        raise UnreachableError(f"no answer from {redact(uri)} ({one_line(error)}): is the server running?") from error


def _server(uri: str) -> tuple[str, str | None, int | None]:
    if is_database(uri):
        from sqlalchemy.engine import make_url

        url = make_url(uri)
        return url.drivername.partition("+")[0], url.host, url.port
    parts = urlsplit(uri)
    return parts.scheme, parts.hostname, parts.port


def user_lock(purpose: str, *of: str) -> BaseFileLock:
    """Return a lock between this user's processes on this machine; reentrant within a thread."""
    from filelock import FileLock

    # Not beside the guarded file, whose folder may be shared or read-only.
    user = getattr(os, "getuid", int)()
    name = f"llmtrack-{purpose}-{user}-{digest(of)}.lock"
    return FileLock(Path(tempfile.gettempdir()) / name, is_singleton=True)


def bound_silence(uri: str) -> None:
    """Let statements fail if the database stays silent: drivers wait for ever for one that keeps its connections open.

    psycopg2 has one hook for all connections of a process; connections to other databases wait as before, and a hook
    that the process has set already (gevent's) stays.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine, make_url

    url = make_url(uri)
    _bounded.add((url.host, url.port, url.database))
    if url.drivername in ("postgresql", "postgresql+psycopg2") and find_spec("psycopg2"):
        psycopg2 = import_module("psycopg2.extensions")
        if psycopg2.get_wait_callback() is None:
            psycopg2.set_wait_callback(partial(_wait, psycopg2))
    elif url.drivername.startswith("mysql") and not event.contains(Engine, "do_connect", _limit_mysql):
        event.listen(Engine, "do_connect", _limit_mysql)


def _limit_mysql(dialect: Any, record: Any, arguments: Any, keywords: dict[str, Any]) -> None:
    """Add time limits to the arguments of a new connection, unless the address sets its own."""
    database = (keywords.get("host"), keywords.get("port"), keywords.get("database") or keywords.get("db"))
    if dialect.driver in ("pymysql", "mysqldb") and database in _bounded:
        for name, seconds in _MYSQL.items():
            keywords.setdefault(name, seconds)


def _wait(psycopg2: Any, connection: Any) -> None:
    """Wait for a connection of psycopg2, as its documentation says, but not for ever."""
    dsn = psycopg2.parse_dsn(connection.dsn)
    database = (dsn.get("host"), int(dsn["port"]) if "port" in dsn else None, dsn.get("dbname"))
    connecting = connection.status == psycopg2.STATUS_SETUP
    seconds = (CONNECT_S if connecting else SILENCE_S) if database in _bounded else None
    while (state := connection.poll()) != psycopg2.POLL_OK:
        reads, writes = state == psycopg2.POLL_READ, state == psycopg2.POLL_WRITE
        file = [connection.fileno()]
        if not any(select.select(file if reads else [], file if writes else [], [], seconds)):
            raise import_module("psycopg2").OperationalError(f"the database did not answer within {seconds:.0f} s")


def _has_tables(uri: str) -> bool:
    """Return whether a database has all tables of MLflow; unlike MLflow, do not retry."""
    from mlflow.store.db.base_sql_model import Base
    from sqlalchemy import create_engine, inspect
    from sqlalchemy.engine import make_url
    from sqlalchemy.pool import NullPool

    has_option = make_url(uri).drivername.startswith(("postgresql", "mysql"))
    timeout = {"connect_timeout": round(CONNECT_S)} if has_option else {}
    engine = create_engine(uri, poolclass=NullPool, connect_args=timeout)
    return {*Base.metadata.tables, "alembic_version"} <= {*inspect(engine).get_table_names()}


def _has_runs(path: Path) -> bool:
    """Return whether an SQLite file has MLflow's table of runs; a file that cannot be read is left to MLflow."""
    try:
        with contextlib.closing(open_read_only(path)) as database:
            return bool(database.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone())
    except sqlite3.Error:
        return True


def _is_tracking_database(path: Path, uri: str) -> bool:
    """Return whether an SQLite file has MLflow's tables, once another process has created them."""
    from filelock import Timeout

    if _has_runs(path):
        return True
    try:
        with user_lock("store", uri).acquire(timeout=_INITIALISE_TIMEOUT_S):
            return _has_runs(path)
    except (Timeout, OSError):
        return True  # `initialise` reports it.


@contextlib.contextmanager
def _quiet_opening() -> Iterator[None]:
    """Suppress MLflow's migration log on first use, and its retries: ten over 100 s, each with five lines, and no setting."""
    from mlflow.store.db import utils

    loggers = [logging.getLogger(name) for name in ("mlflow.store.db.utils", "alembic")]
    levels, retries = [logger.level for logger in loggers], utils.MAX_RETRY_COUNT
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    utils.MAX_RETRY_COUNT = _ATTEMPTS
    try:
        yield
    finally:
        utils.MAX_RETRY_COUNT = retries
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _is_below_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def _client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)
