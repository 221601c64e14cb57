"""Bound how long a database may stay silent: drivers wait for ever for one that is frozen, as its connections stay open."""

from __future__ import annotations

import select
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

CONNECT_S = 5.0
SILENCE_S = 30.0
"""Without a byte from the server during a statement, as long as `MLFLOW_HTTP_REQUEST_TIMEOUT` of an HTTP server."""

_MYSQL = {"connect_timeout": round(CONNECT_S), "read_timeout": round(SILENCE_S), "write_timeout": round(SILENCE_S)}
"""Arguments of MySQL's drivers."""

_bounded: set[tuple[str | None, int | None, str | None]] = set()


def bound_silence(uri: str) -> None:
    """Let statements of a database fail where it stays silent, instead of waiting for ever.

    psycopg2 has one hook for all connections of a process; those to other databases wait as they did. An own hook of the
    process (gevent's) stays.

    Args:
        uri: SQLAlchemy's address of the database.
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


def _limit_mysql(dialect: Any, record: Any, arguments: Any, named: dict[str, Any]) -> None:
    """Add time limits to the arguments of a new connection, unless the address sets its own."""
    place = (named.get("host"), named.get("port"), named.get("database") or named.get("db"))
    if dialect.driver in ("pymysql", "mysqldb") and place in _bounded:
        for name, seconds in _MYSQL.items():
            named.setdefault(name, seconds)


def _wait(psycopg2: Any, connection: Any) -> None:
    """Wait until a connection of psycopg2 has done what it is at."""
    told = psycopg2.parse_dsn(connection.dsn)
    place = (told.get("host"), int(told["port"]) if "port" in told else None, told.get("dbname"))
    connecting = connection.status == psycopg2.STATUS_SETUP
    seconds = (CONNECT_S if connecting else SILENCE_S) if place in _bounded else None
    while (state := connection.poll()) != psycopg2.POLL_OK:
        reads, writes = state == psycopg2.POLL_READ, state == psycopg2.POLL_WRITE
        file = [connection.fileno()]
        if not any(select.select(file if reads else [], file if writes else [], [], seconds)):
            raise import_module("psycopg2").OperationalError(f"the database gave no answer within {seconds:.0f} s")
