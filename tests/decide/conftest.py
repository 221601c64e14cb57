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
    messages,
    tracker,
    uri,
)
from tests.tracking.samples import ENVIRONMENT, measurement

IDS = ("study_id", "run_id", "experiment_id")


@pytest.fixture
def measured(filled_once: Callable) -> Callable[..., list[SimpleNamespace]]:  # noqa: F811
    """Fill the store with studies, each given by its seed and slowdown; return their ids."""

    def fill(*studies: tuple[int, float]) -> list[SimpleNamespace]:
        def ids_of(store: Tracker) -> list[dict[str, str]]:
            measured = [measure(store, seed, slower).study for seed, slower in studies]
            return [{key: getattr(study, key) for key in IDS} for study in measured]

        name = "-".join(f"{seed}x{slower}" for seed, slower in studies)
        return [SimpleNamespace(**ids) for ids in filled_once(f"measured-{name}", ids_of)]

    return fill


@pytest.fixture
def tracked(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Track a study of three quantizations, each repeated 8 times."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracker.tracking_uri)
    study = tracker.start_study("quantization", "q", {}, ENVIRONMENT)
    for name, speed, perplexity in (("fp32", 10.0, 20.0), ("int8", 20.0, 20.1), ("int4", 30.0, 26.0)):
        tracker.log(
            study,
            measurement(
                name,
                facts={"model_id": "m", "dtype": "float32", "quantization": name},
                metrics={"tokens_per_sec": speed, "perplexity": perplexity, "peak_memory_mib": 100.0},
                samples={"tokens_per_sec": tuple(speed * (1 + n / 1000) for n in range(8))},
                summaries={},
            ),
        )
