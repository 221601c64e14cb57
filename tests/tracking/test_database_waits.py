"""A database that stays silent is waited for in seconds; one that is frozen for real is in test_postgres.py."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from llmtrack.tracking import database_waits
from llmtrack.tracking.database_waits import bound_silence

LIMITS = {"connect_timeout": 5, "read_timeout": 30, "write_timeout": 30}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    monkeypatch.setattr(database_waits, "_bounded", set())
    yield
    if event.contains(Engine, "do_connect", database_waits._limit_mysql):
        event.remove(Engine, "do_connect", database_waits._limit_mysql)


@pytest.mark.parametrize(
    ("driver", "named", "added"),
    [
        ("pymysql", {"host": "db", "port": 3306, "database": "mlflow"}, LIMITS),
        ("mysqldb", {"host": "db", "port": 3306, "db": "mlflow"}, LIMITS),
        (
            "pymysql",
            {"host": "db", "port": 3306, "database": "mlflow", "read_timeout": 600},
            {**LIMITS, "read_timeout": 600},
        ),
        ("pymysql", {"host": "db", "port": 3306, "database": "other"}, {}),
        ("psycopg2", {"host": "db", "port": 3306, "database": "mlflow"}, {}),
    ],
)
def test_connections_of_mysql_get_limits_unless_the_address_sets_its_own(driver, named, added):
    bound_silence("mysql+pymysql://user:secret@db:3306/mlflow")
    assert event.contains(Engine, "do_connect", database_waits._limit_mysql)
    given = dict(named)
    database_waits._limit_mysql(SimpleNamespace(driver=driver), None, [], given)
    assert given == {**named, **added}
