"""A store for each test, and the objects that a study needs."""

from __future__ import annotations

import io
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

import llmtrack.worker.generate  # noqa: F401 - executors import it late, and `quiet_machine` must find it
from llmtrack.host import signals
from llmtrack.report.page.reports import WrittenReport
from tests.conftest import know_ceilings
from tests.extensions import scripted_backend
from tests.tracking.conftest import (  # noqa: F401 - fixtures
    _clean_environment,
    messages,
    spooled,
    tracker,
    uri,
)


@pytest.fixture(autouse=True)
def _undrawn(undrawn: None) -> None:
    """Skip plots, which these tests do not look at."""


@pytest.fixture
def _unreported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip reports, which take longer than the study."""
    for where in ("study.study.write_study", "suite.write_suite"):
        monkeypatch.setattr(f"llmtrack.run.{where}", lambda *of: WrittenReport())


@pytest.fixture
def _known_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that copies a million bytes per second."""
    know_ceilings(monkeypatch, bytes_per_s=1e6)


@pytest.fixture
def _stays_at_the_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """End on signals in this process, which keeps the terminal."""
    monkeypatch.setattr(signals, "_leave_terminal", lambda: None)
    # A test run in the background ignores some of them.
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def console() -> Console:
    """A console that records its output: `console.file.getvalue()`."""
    return Console(file=io.StringIO(), width=300, highlight=False)


@pytest.fixture
def noisy_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the backend `noisy` (see noisy.py) for worker processes; return the file that it writes."""
    log = tmp_path / "noisy.log"
    site = scripted_backend(tmp_path / "site", Path(__file__).with_name("noisy.py"))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("NOISY_LOG", str(log))
    return log
