"""Fixtures of a store and a tracker for decisions over tracked runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmtrack.tracking.store import sqlite_path
from llmtrack.tracking.tracker import Tracker
from tests.conftest import made_once
from tests.decide.scripted import measure
from tests.run.conftest import console  # noqa: F401 - fixture
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    said,
    tracker,
    uri,
)

IDS = ("study_id", "run_id", "experiment_id")


@pytest.fixture
def measured(
    uri: str,  # noqa: F811
    template_database: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., list[SimpleNamespace]]:
    """Fill the store with studies, each told by its seed and how much slower it is; return their ids.

    What is measured takes seconds, so it is done once and copied.
    """

    def fill(*asked: tuple[int, float]) -> list[SimpleNamespace]:
        def make(folder: Path) -> None:
            shutil.copyfile(template_database, folder / "mlflow.db")
            own = Tracker.open(f"sqlite:///{folder / 'mlflow.db'}", spool=folder / "spool")
            studies = [measure(own, seed, slower).study for seed, slower in asked]
            told = [{key: getattr(each, key) for key in IDS} for each in studies]
            (folder / "studies.json").write_text(json.dumps(told))

        name = "-".join(f"{seed}x{slower}" for seed, slower in asked)
        folder = made_once(tmp_path_factory, f"measured-{name}", make)
        shutil.copyfile(folder / "mlflow.db", sqlite_path(uri))
        return [SimpleNamespace(**each) for each in json.loads((folder / "studies.json").read_text())]

    return fill
