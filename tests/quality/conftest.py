"""Shared engines and texts of the quality tests."""

from __future__ import annotations

import pytest

from llmtrack.engines.torch.pytorch import TorchEngine
from tests.engines.models import small


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    """A small model to score with: what is tried is how a text is cut, for which one layer is enough."""
    return small("llama", num_hidden_layers=1, max_position_embeddings=1024)
