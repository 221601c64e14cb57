"""A store of its own for each test, and what a study needs around it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

import llmtrack.worker.generate  # noqa: F401 - executors import it late, and `quiet_machine` must find it
from llmtrack.measure import bandwidth
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    said,
    spooled,
    tracker,
    uri,
)

BANDWIDTH = 1e6


@pytest.fixture
def _known_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that moves a million bytes a second."""
    monkeypatch.setattr(bandwidth, "copy_bandwidth", lambda device: BANDWIDTH)


@pytest.fixture
def console() -> Console:
    """A console that keeps what is printed: `console.file.getvalue()`."""
    return Console(file=io.StringIO(), width=300, highlight=False)


@pytest.fixture
def noisy_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the backend `noisy` (see noisy.py) for worker processes; return the file that it writes to."""
    site, log = tmp_path / "site", tmp_path / "noisy.log"
    info = site / "noisy-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "noisy.py").write_text(Path(__file__).with_name("noisy.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noisy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[llmtrack.engines]\nnoisy = noisy:load\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("NOISY_LOG", str(log))
    return log
