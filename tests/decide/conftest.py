"""Fixtures of a store and a tracker for decisions over tracked runs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from llmtrack.tracking.write.tracker import Tracker
from tests.decide.scripted import measure
from tests.run.conftest import console  # noqa: F401 - fixture
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    filled_once,
    said,
    tracker,
    uri,
)

IDS = ("study_id", "run_id", "experiment_id")


@pytest.fixture
def measured(filled_once: Callable) -> Callable[..., list[SimpleNamespace]]:  # noqa: F811
    """Fill the store with studies, each told by its seed and how much slower it is; return their ids."""

    def fill(*asked: tuple[int, float]) -> list[SimpleNamespace]:
        def studies(own: Tracker) -> list[dict[str, str]]:
            found = [measure(own, seed, slower).study for seed, slower in asked]
            return [{key: getattr(each, key) for key in IDS} for each in found]

        name = "-".join(f"{seed}x{slower}" for seed, slower in asked)
        return [SimpleNamespace(**each) for each in filled_once(f"measured-{name}", studies)]

    return fill
