"""A small model to score with."""

from __future__ import annotations

import pytest

from llmtrack.engines.pytorch import TorchEngine, load
from llmtrack.scenario import Variant


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    return load(Variant("synthetic:tiny", device="cpu"))
