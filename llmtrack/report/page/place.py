"""Context of a report: its run and store, where it is printed and written, and its parts, which may fail one by one."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.console import Console

from llmtrack.host.secrets import redact
from llmtrack.report.page.html import Report
from llmtrack.tracking.read.artifacts import artifact_text, series
from llmtrack.tracking.store_errors import one_line
from llmtrack.tracking.views import run_link


@dataclass(frozen=True)
class Place:
    """Context of a report.

    Attributes:
        run_id: run of the study or suite.
        experiment_id: MLflow experiment, for links.
        tracking_uri: store of the runs.
        folder: where to write files.
        console: where to print.
        parts: collects failures.
    """

    run_id: str | None
    experiment_id: str | None
    tracking_uri: str
    folder: Path
    console: Console
    parts: Parts

    def linked(self, page: Report) -> Report:
        """Return a page whose run ids link to MLflow."""
        if self.experiment_id is None:
            return page
        server, start = server_of(self.tracking_uri)
        return replace(page, runs_at=f"{server}/#/experiments/{quote(self.experiment_id)}/runs/", start=start)

    def series(self, run_id: str, metric: str) -> list[float]:
        """Return a run's values per step of a metric."""
        return series(run_id, metric, self.tracking_uri)

    def text(self, run_id: str, path: str) -> str:
        """Return a text artifact of a run; empty if missing."""
        return artifact_text(run_id, path, self.tracking_uri)


def links_to(experiment_id: str | None, run_ids: Sequence[str]) -> tuple[str, ...]:
    """Return links to runs, relative to MLflow's pages."""
    return tuple(run_link("", str(experiment_id), run_id) for run_id in run_ids)


def server_of(tracking_uri: str) -> tuple[str, str]:
    """Return the address of MLflow's pages without credentials, and the command that starts them if no server runs."""
    parts = urlsplit(tracking_uri)
    if parts.scheme in ("http", "https") and parts.hostname:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}", ""
    return "http://127.0.0.1:5000", f"mlflow ui --backend-store-uri {shlex.quote(redact(tracking_uri))}"


class Parts:
    """The parts of a report.

    Attributes:
        problems: failed parts with the reason, one line each.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Build a part; record an error instead of raising it."""
        try:
            yield
        except Exception as error:
            self.problems.append(f"{name}: {type(error).__name__}: {one_line(error)}")
