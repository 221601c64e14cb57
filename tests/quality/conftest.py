"""Shared engines and texts of the quality tests."""

from __future__ import annotations

import pytest

from llmtrack.engines.torch.pytorch import TorchEngine
from tests.engines.models import small


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    """A model of one layer, which is enough to test how a text is cut."""
    return small("llama", num_hidden_layers=1, max_position_embeddings=1024)
