"""Find, initialise and open the tracking store; a store that does not answer fails within seconds."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import select
import socket
import tempfile
import urllib.request
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from llmtrack.errors import TrackingError, UsageError
from llmtrack.host.packages import installed_version
from llmtrack.host.secrets import redact, register_address
from llmtrack.spec.parameter import optional_text
from llmtrack.spec.serialization import digest
from llmtrack.tracking.store_errors import (
    UnreachableError,
    is_connection_failure,
    is_permanent,
    one_line,
    one_line_errors,
    refusal,
)

if TYPE_CHECKING:
    from filelock import BaseFileLock
    from mlflow import MlflowClient

DEFAULT_EXPERIMENT = "llmtrack"
DEFAULT_DATABASE = "mlflow.db"

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
_SQLITE = "sqlite:///"
# Paths that every SQLAlchemy release treats alike, so that its slow import can be avoided.
_PLAIN_PATH = re.compile(r"[\w./~-]+", re.ASCII)
_PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
# Connect timeout option of the drivers.
_TIMEOUTS = {"postgresql": "connect_timeout", "mysql": "connect_timeout"}
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_SERVERS = ("http", "https")
_BARE_SCHEMES = ("databricks", "databricks-uc")
# Arguments of MySQL's drivers.
_MYSQL = {"connect_timeout": round(CONNECT_S), "read_timeout": round(SILENCE_S), "write_timeout": round(SILENCE_S)}

# Host, port and name of the databases whose silence is bounded.
_bounded: set[tuple[str | None, int | None, str | None]] = set()


def resolve_tracking_uri(uri: str | None = None) -> str:
    """Return the tracking URI: the argument, else MLFLOW_TRACKING_URI, else ./mlflow.db.

    The path of a sqlite database (`sqlite:///relative.db`, or just a file name) becomes absolute, so that it refers to
    the same database in every working directory.

    Raises:
        UsageError: the URI names MLflow's old file store (which MLflow rejects), no file, or no server address.
    """
    uri = optional_text("tracking URI", uri) or os.environ.get("MLFLOW_TRACKING_URI") or _SQLITE + DEFAULT_DATABASE
    register_address(uri)
    scheme = uri.partition(":")[0].lower() if ":" in uri else ""
    if scheme == "sqlite":
        return _absolute_sqlite(uri)
    path = Path(os.path.expanduser(unquote(urlsplit(uri).path) if scheme == "file" else uri))
    if scheme in ("", "file") and uri not in _BARE_SCHEMES:
        if path.is_dir() or path.suffix not in (".db", ".sqlite", ".sqlite3"):
            raise UsageError(
                f"tracking URI {redact(uri)!r} is a folder: MLflow no longer writes its old file store; "
                "use sqlite:///mlflow.db or a server's http:// address"
            )
        return _sqlite_uri(path.absolute())
    if scheme in _SERVERS and not _is_address(uri):
        raise UsageError(
            f"tracking URI {redact(uri)!r} is not a server address: write {scheme}://HOST:PORT, and special characters of a "
            "password as %XX (/ is %2F)"
        )
    return uri


def sqlite_path(uri: str) -> Path | None:
    """Return the file of a resolved sqlite URI; None for other stores or in-memory databases."""
    if not uri.startswith(_SQLITE):
        return None
    path: str | None = uri.removeprefix(_SQLITE)
    if not _PLAIN_PATH.fullmatch(uri.removeprefix(_SQLITE)):
        from sqlalchemy.engine import make_url

        # MLflow percent-encodes the path, and only some SQLAlchemy releases decode it.
        path = make_url(uri).database
    return Path(path) if path and path != ":memory:" else None


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
    if _is_database(uri):
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
    return open_store(uri)


def initialise(uri: str) -> None:
    """Create the tables of a new database under a lock, since concurrent processes would crash.

    The lock is only held while tables are created, as imports and the schema check take seconds. No-op for a server.

    Raises:
        UnreachableError: nothing answers, or the connection is lost.
        TrackingError: the database cannot be opened, or its driver is missing.
    """
    if not _is_database(uri):
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

    option = _TIMEOUTS.get(make_url(uri).drivername.partition("+")[0])
    engine = create_engine(uri, poolclass=NullPool, connect_args={option: round(CONNECT_S)} if option else {})
    return {*Base.metadata.tables, "alembic_version"} <= {*inspect(engine).get_table_names()}


def check_reachable(uri: str) -> None:
    """Check that a server's port answers within seconds, or that the folder of a database exists.

    Raises:
        UnreachableError: nothing answers.
        TrackingError: the database's folder is missing.
    """
    path = sqlite_path(uri)
    if path is not None and not path.parent.is_dir():
        raise TrackingError(f"cannot open {path}: its folder does not exist; create it or use another path")
    if path is not None:
        return
    scheme, host, port = _server(uri)
    if scheme not in _PORTS or not host:
        return
    if scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(host):
        return  # The proxy connects; reachability cannot be checked here.
    try:
        socket.create_connection((host, port or _PORTS[scheme]), timeout=CONNECT_S).close()
    except OSError as error:
        raise UnreachableError(f"no answer from {redact(uri)} ({one_line(error)})") from error


def _server(uri: str) -> tuple[str, str | None, int | None]:
    if _is_database(uri):
        from sqlalchemy.engine import make_url

        url = make_url(uri)
        return url.drivername.partition("+")[0], url.host, url.port
    parts = urlsplit(uri)
    return parts.scheme, parts.hostname, parts.port


def ensure_experiment(client: MlflowClient, name: str) -> str:
    """Return the id of an MLflow experiment, creating it if missing.

    A new experiment of a sqlite database stores its artifacts in `mlartifacts` beside the database; MLflow's default
    would be the working directory of the first process.

    Raises:
        TrackingError: an experiment of that name was deleted.
        mlflow.MlflowException: the store failed.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            return client.create_experiment(name, artifact_location=_artifact_location(client, name))
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            experiment = client.get_experiment_by_name(name)  # Another process created it.
    if experiment is None or experiment.lifecycle_stage == "deleted":
        number = experiment.experiment_id if experiment else "ID"
        raise TrackingError(
            f"experiment {name!r} was deleted in MLflow: restore it with "
            f"`mlflow experiments restore --experiment-id {number}` or use another name"
        )
    return experiment.experiment_id


def default_experiment(client: MlflowClient) -> str:
    """Name the MLflow experiment to write to: from MLflow's variables, else `llmtrack`.

    Raises:
        mlflow.MlflowException: the store failed, or has no experiment with the id in MLFLOW_EXPERIMENT_ID.
    """
    name, number = os.environ.get("MLFLOW_EXPERIMENT_NAME"), os.environ.get("MLFLOW_EXPERIMENT_ID")
    if not name and number:
        return client.get_experiment(number).name
    return name or DEFAULT_EXPERIMENT


def experiment_of_run(client: MlflowClient, run_id: str) -> tuple[str, str]:
    """Return the id and name of a run's MLflow experiment.

    Raises:
        TrackingError: there is no such run.
        mlflow.MlflowException: the store failed.
    """
    from mlflow.exceptions import MlflowException

    try:
        number = client.get_run(run_id).info.experiment_id
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        raise TrackingError(
            f"MLFLOW_RUN_ID={run_id} is not in {redact(client.tracking_uri)}: unset it, or set "
            "MLFLOW_TRACKING_URI to the store of that run (absolute, if it is a sqlite file)"
        ) from error
    return number, client.get_experiment(number).name


def experiment_names(client: MlflowClient) -> dict[str, str]:
    """Return the names of the active MLflow experiments by id.

    Raises:
        TrackingError: the store cannot be read.
    """
    names: dict[str, str] = {}
    token: str | None = None
    while True:
        with one_line_errors(client):
            page = client.search_experiments(max_results=1000, page_token=token)
        names.update({item.experiment_id: item.name for item in page})
        token = page.token
        if not token:
            return names


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


def _is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def _is_address(uri: str) -> bool:
    """Return whether a URI has a host, and a valid port if any."""
    try:
        parts = urlsplit(uri)
        # A / ? or # in the password would turn its rest into the path, and the user into the host.
        cut_off = "@" not in parts.netloc and ":" in parts.netloc and "@" in uri and parts.netloc[0] != "["
        return bool(parts.hostname) and parts.port != 0 and not cut_off
    except ValueError:
        return False


def _client(uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri)


def _absolute_sqlite(uri: str) -> str:
    path = sqlite_path(uri)
    if path is None:
        raise UsageError(
            f"tracking URI {uri!r} names no file, so that nothing would be stored: write sqlite:///mlflow.db, with four slashes "
            "before an absolute path"
        )
    options = uri.partition("?")[1:]
    return _sqlite_uri(Path(os.path.expanduser(path)).absolute()) + "".join(options)


def _sqlite_uri(path: Path) -> str:
    if _PLAIN_PATH.fullmatch(str(path)):
        return f"{_SQLITE}{path}"
    from sqlalchemy.engine import URL, make_url

    uri = URL.create("sqlite", database=str(path)).render_as_string()
    if make_url(uri).database != str(path):
        raise TrackingError(
            f"SQLAlchemy {installed_version('sqlalchemy')} cannot address {path}: rename the file or folder with a ? in its name"
        )
    return uri


def _artifact_location(client: MlflowClient, name: str) -> str | None:
    path = sqlite_path(client.tracking_uri)
    if path is None:
        return None
    slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name)[:60]
    folder = path.parent / "mlartifacts" / f"{slug}-{digest([path.name, name])[:8]}"
    # MLflow also decodes plain paths: `a%20b` would become another folder.
    return folder.as_uri() if set("%?#") & set(str(folder)) else str(folder)
