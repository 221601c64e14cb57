"""Where a report goes: run, store, folder and console, its files, and its parts, which may fail one by one."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from rich.console import Console

from llmtrack.errors import LlmtrackError, in_words
from llmtrack.host.console import make_folder, write_neutral
from llmtrack.host.secrets import redact
from llmtrack.report.escape import in_markdown
from llmtrack.report.page.html import Report, render_report
from llmtrack.report.plots.drawing import drawing, save
from llmtrack.report.tables.picture import to_figure
from llmtrack.report.tables.rendering import to_markdown
from llmtrack.report.tables.summary import to_csv
from llmtrack.report.tables.table import Table
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.artifacts import artifact_text, series
from llmtrack.tracking.store_errors import one_line
from llmtrack.tracking.views import run_link


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
            words = (
                in_words(error) if isinstance(error, LlmtrackError) else f"{type(error).__name__}: {one_line(error)}"
            )
            self.problems.append(f"{name}: {words}")


@dataclass(frozen=True)
class ReportContext:
    """The run, store, folder and console of a report.

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

    def with_links(self, page: Report) -> Report:
        """Return a page whose run ids link to MLflow."""
        if self.experiment_id is None:
            return page
        server, start = mlflow_server(self.tracking_uri)
        return replace(page, runs_at=f"{server}/#/experiments/{quote(self.experiment_id)}/runs/", start=start)

    def series(self, run_id: str, metric: str) -> list[float]:
        """Return a run's values per step of a metric."""
        return series(run_id, metric, self.tracking_uri)

    def text(self, run_id: str, path: str) -> str:
        """Return a text artifact of a run; empty if missing."""
        return artifact_text(run_id, path, self.tracking_uri)


def write_report(
    folder: Path,
    title: str,
    table: Table | Mapping[str, Table],
    tracked: Runs,
    reading: Sequence[str] = (),
    parts: Parts | None = None,
) -> dict[str, Path]:
    """Write the table as CSV, Markdown and PNG, and the reading; return the files by name.

    Args:
        folder: created if missing.
        title: of the picture.
        table: or several by title.
        tracked: runs of the table.
        parts: collects failures; without it errors are raised.
    """

    def picture(path: Path) -> None:
        with drawing():
            save(to_figure(table, title), path)

    lines = "".join(f"- {in_markdown(line)}\n" for line in reading)
    writers: dict[str, Callable[[Path], object]] = {
        "table.csv": lambda path: write_neutral(path, to_csv(tracked)),
        "table.md": lambda path: write_neutral(path, _in_sections(table)),
        "reading.md": lambda path: write_neutral(path, lines),
        "table.png": picture,
    }
    make_folder(folder)
    files = {}
    for name, write in writers.items():
        if name == "reading.md" and not lines:
            continue
        with parts.part(name) if parts else nullcontext():
            write(folder / name)
            files[name] = folder / name
    return files


def write_html(folder: Path, report: Report) -> Path:
    """Write a report as one self-contained HTML file; return its path."""
    path = folder / "report.html"
    write_neutral(path, render_report(report))
    return path


def run_links(experiment_id: str | None, run_ids: Sequence[str]) -> tuple[str, ...]:
    """Return links to runs, relative to MLflow's pages; none without an experiment."""
    return tuple(run_link("", experiment_id, run_id) for run_id in run_ids) if experiment_id else ()


def mlflow_server(tracking_uri: str) -> tuple[str, str]:
    """Return the address of MLflow's pages without credentials, and the command that starts them if no server runs."""
    parts = urlsplit(tracking_uri)
    if parts.scheme in ("http", "https") and parts.hostname:
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}", ""
    return "http://127.0.0.1:5000", f"mlflow ui --backend-store-uri {shlex.quote(redact(tracking_uri))}"


def _in_sections(table: Table | Mapping[str, Table]) -> str:
    if isinstance(table, Table):
        return to_markdown(table)
    return "\n".join(f"### {name}\n\n{to_markdown(part)}" for name, part in table.items())
