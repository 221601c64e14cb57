"""Runs are read completely while another process writes; benchmarks/read_while_writing.py is the long version."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchmarks.read_runs import fill
from benchmarks.read_while_writing import EXPERIMENT, read_while_writing
from llmtrack.tracking.read import direct, source
from llmtrack.tracking.uri import sqlite_path
from tests.conftest import made_once
from tests.forking import processes


@pytest.fixture(scope="session")
def filled(template_database, tmp_path_factory):
    """A database of runs."""

    def make(folder: Path) -> None:
        shutil.copyfile(template_database, folder / "mlflow.db")
        fill(f"sqlite:///{folder / 'mlflow.db'}", EXPERIMENT, 40)

    return made_once(tmp_path_factory, "filled", make) / "mlflow.db"


@pytest.mark.parametrize("reader", ["llmtrack", "MLflow"])
def test_each_reading_has_all_runs_written_before(filled, uri, monkeypatch, reader):
    shutil.copyfile(filled, sqlite_path(uri))
    # Several pages, between which the other process writes.
    monkeypatch.setattr(direct, "_ROWS_PER_SCAN", 100)
    if reader == "MLflow":
        monkeypatch.setattr(direct, "read", lambda *_: None)
    monkeypatch.setattr(source, "PAGE", 10)
    monkeypatch.setattr(source, "_FIRST_PAGE", 10)
    results = read_while_writing(uri, writers=1, readings=2, context=processes())
    assert results[-1].rows > 40
    assert [reading.rows for reading in results] == sorted(reading.rows for reading in results)
    assert {(reading.missing, reading.twice) for reading in results} == {(0, 0)}


pytestmark = pytest.mark.slow(5)
