"""The compare step: choose tracked runs, print them side by side, and write or log the table."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from rich.console import Console

from llmtrack.errors import UsageError
from llmtrack.report.compare import in_order_of_time, newest_of_each
from llmtrack.report.console import make_console
from llmtrack.report.table import summary_table, to_markdown
from llmtrack.report.write import print_report, write_report
from llmtrack.tracking.query import runs


def compare_runs(
    *,
    experiment: str | None = None,
    study: str | None = None,
    model: str | None = None,
    search: str | None = None,
    tracking_uri: str | None = None,
    every: bool = False,
    output: Path | None = None,
    console: Console | None = None,
) -> None:
    """Print tracked runs as one table; write it to a folder, and log it to the run that `mlflow run` opened.

    Args:
        experiment: name of an llmtrack or MLflow experiment.
        study: id of a study or of its run, or `latest`.
        model: part of the model's name.
        search: a word, or an MLflow filter string.
        tracking_uri: the store.
        every: every run, not only the newest of each scenario.
        output: folder for table.csv, table.md and table.png.
        console: where to print.

    Raises:
        UsageError: no run matches, or a filter is not understood.
        TrackingError: the store cannot be used.
    """
    console = console or make_console()
    found = runs(experiment, study, model, "scenario", search, None, tracking_uri)
    if found.empty:
        raise UsageError(
            "no tracked run matches: widen the filters, or run an experiment first (mlflow run . -e baseline)"
        )
    tracked = in_order_of_time(found if every else newest_of_each(found))
    table = summary_table(tracked, among=found)
    print_report(console, f"{len(tracked)} of {len(found)} tracked runs", table)
    if output is not None:
        files = write_report(output, "llmtrack compare", table, tracked)
        console.print(
            f"Written: {', '.join(str(path) for path in files.values())}", markup=False, soft_wrap=True
        )
    if "MLFLOW_RUN_ID" in os.environ:
        from llmtrack.tracking.environment import environment
        from llmtrack.tracking.tracker import Tracker

        tracker = Tracker.open(tracking_uri)
        chosen = {"experiment": experiment, "study": study, "model": model, "search": search}
        own = tracker.start_study(
            "compare",
            "How do the tracked runs compare?",
            {name: value for name, value in chosen.items() if value is not None} | {"every": every},
            environment(),
        )
        links = tuple(f"#/experiments/{own.experiment_id}/runs/{run_id}" for run_id in table.run_ids)
        with tempfile.TemporaryDirectory() as folder:
            files = write_report(Path(folder), "llmtrack compare", table, tracked)
            tracker.finish_study(own, "finished", note=to_markdown(table, links), files=files)
