"""The two synthetic models as engines: rotary positions with a pad token, learned positions without one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from llmtrack.engines import pytorch
from llmtrack.engines.pytorch import TorchEngine
from llmtrack.scenario import Variant


@pytest.fixture(scope="session", params=["synthetic:tiny", "synthetic:tiny-gpt2"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return pytorch.load(Variant(request.param, device="cpu"))


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    return pytorch.load(Variant("synthetic:tiny", device="cpu"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by threads, most of all where other programs run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
