"""The two synthetic models as engines: rotary positions with a pad token, learned positions without one."""

from __future__ import annotations

import pytest

from llmtrack.engines import pytorch
from llmtrack.engines.pytorch import TorchEngine
from llmtrack.scenario import Variant


@pytest.fixture(scope="session", params=["synthetic:tiny", "synthetic:tiny-gpt2"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return pytorch.load(Variant(request.param, device="cpu"))


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    return pytorch.load(Variant("synthetic:tiny", device="cpu"))
