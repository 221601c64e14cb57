"""A tracker of each kind of store."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrack.tracking.write.tracker import Tracker


@pytest.fixture(params=["sqlite", "server"])
def tracker_and_uri(
    request: pytest.FixtureRequest, experiment: str, tmp_path: Path, messages: list[str]
) -> tuple[Tracker, str]:
    """A tracker of an MLflow experiment of its own, and the address of its store."""
    uri = request.getfixturevalue("uri") if request.param == "sqlite" else request.getfixturevalue("server").uri
    return Tracker.open(uri, experiment, tmp_path / "spool", messages.append), uri
