"""The compare command: show tracked runs side by side or against a baseline, and write or log the table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmtrack import metrics as schema
from llmtrack.decide.compare import COLUMNS, compare_pairs, sort_comparisons, to_frame
from llmtrack.decide.selection import pair_runs, select_all
from llmtrack.decide.verdicts import named_warnings, with_samples, with_samples_of_pairs
from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.console import emit
from llmtrack.host.entry_points import named_experiment
from llmtrack.host.formatting import plural
from llmtrack.report.page.output import write_report
from llmtrack.report.page.reports import page_note
from llmtrack.report.sentences.takeaways import headline
from llmtrack.report.show import AS_TABLE, Layout, frame_text, show
from llmtrack.report.tables.differences import differences_table
from llmtrack.report.tables.summary import split_by_task, summary_table, with_noise_floor
from llmtrack.report.tables.table import ExtraValues, Table, values_of_runs, with_differing_params
from llmtrack.report.terminal import make_console, print_line, print_lines
from llmtrack.tracked.frames import check_columns, column_names
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs, why_empty

# Page formats show only a study's own columns and those that distinguish runs.
_PAGES = ("markdown", "html", "latex")
_DISTINGUISHING: tuple[schema.Role, ...] = ("configuration", "work", "convention")


def show_side_by_side(
    *,
    experiment: str | None = None,
    study: str | None = None,
    model: str | None = None,
    search: str | None = None,
    tracking_uri: str | None = None,
    every: bool = False,
    warnings: bool = False,
    output: Path | None = None,
    layout: Layout = AS_TABLE,
    **filters: Any,
) -> None:
    """Print tracked runs as one table; optionally write it to a folder, and log it to the run opened by `mlflow run`.

    Args:
        experiment: name of an llmtrack or MLflow experiment.
        study: id of a study or of its run, or `latest`.
        model: part of the model's name.
        search: a word, or an MLflow filter string.
        tracking_uri: the store.
        every: every run instead of the newest of each scenario.
        warnings: list the warnings of each run below the table.
        output: folder for table.csv, table.md and table.png.
        filters: further filters of `llmtrack.runs`.

    Raises:
        UsageError: no run matches, or a filter or column is invalid.
        TrackingError: the store cannot be used.
    """
    console = make_console()
    matching = tracked_runs(experiment, study, model, "scenario", search, None, tracking_uri, **filters)
    if not matching:
        raise UsageError(
            why_empty(study, tracking_uri)
            or "no tracked run matches: widen the filters, or run an experiment first (llmtrack run baseline)"
        )
    matching = with_samples(matching, tracking_uri)
    shown = _sorted((matching if every else matching.newest_of_each()).in_order_of_time(), layout.sort)
    table = _table(shown, matching, layout)
    title = f"{len(shown)} of {plural(len(matching), 'tracked run')}"
    parts = split_by_task(shown)
    if console.is_terminal and layout.style == "table" and layout.columns is None and len(parts) > 1:
        # Files get one table for further processing; on a terminal it would mostly consist of dashes.
        for name, part in parts.items():
            table_of_part = summary_table(part, among=matching)
            if name == tuple(parts)[-1]:
                table_of_part = with_noise_floor(table_of_part, shown)
            show(console, f"{title}: {name}", table_of_part, layout)
    else:
        show(console, title, table, layout, values_of_runs(shown))
    if warnings:
        # csv and json are read by programs.
        beside = make_console(stderr=True) if layout.style in ("csv", "json") else console
        print_lines(beside, [line for run in shown for line in named_warnings(run)])
    if output is not None:
        files = write_report(output, "llmtrack compare", table, shown)
        if layout.style == "table":
            print_line(console, f"Written: {', '.join(str(path) for path in files.values())}")
    if "MLFLOW_RUN_ID" in os.environ:
        named = {"experiment": experiment, "study": study, "model": model, "search": search}
        settings = {name: value for name, value in named.items() if value is not None} | {"every": every}
        _log(tracking_uri, settings, table, shown)


def _table(shown: Runs, matching: Runs, layout: Layout) -> Table:
    """Lay out runs in the columns of their study on a page, else of all, with the params in which they differ."""
    experiments = {run.experiment for run in shown} - {""}
    on_page = layout.style in _PAGES and not layout.wide
    own = None
    if layout.columns is None and len(experiments) == 1:
        if not on_page or len({run.study_id for run in shown} - {""}) != 1:
            table = with_noise_floor(summary_table(shown, among=matching), shown)
            return with_differing_params(table, shown, _DISTINGUISHING if on_page else None)
        with suppress(ExtensionError):  # show the runs even if the plug-in is broken
            declared = getattr(named_experiment(experiments.pop()), "DECLARED", None)
            own = declared.table if declared else None
    return with_noise_floor(summary_table(shown, among=matching, own=own), shown)


def _log(tracking_uri: str | None, settings: Mapping[str, Any], table: Table, shown: Runs) -> None:
    """Log a comparison to the run opened by `mlflow run`."""
    from llmtrack.tracking.environment import environment
    from llmtrack.tracking.write.tracker import Tracker

    tracker = Tracker.open(tracking_uri)
    question = "How do the tracked runs compare?"
    study = tracker.start_study("compare", question, settings, environment())
    with tempfile.TemporaryDirectory() as folder:
        files = write_report(Path(folder), "llmtrack compare", table, shown)
        note = page_note(question, [f"{plural(len(shown), 'run')} side by side."], {"": table}, study.experiment_id)
        tracker.finish_study(study, "finished", note=note, files=files, metrics=headline(shown))


def show_differences(
    baseline: Sequence[str],
    candidates: Sequence[str],
    metrics: Sequence[str] | None = None,
    *,
    experiment: str | None = None,
    across_environments: bool = False,
    layout: Layout = AS_TABLE,
    tracking_uri: str | None = None,
) -> None:
    """Print how candidates differ from a baseline; see `llmtrack.compare`.

    Args:
        baseline: selectors.
        candidates: selectors.
        metrics: metrics to compare; else the headline ones.
        experiment: restrict to this llmtrack or MLflow experiment.
        across_environments: also compare speed and memory of different machines or versions.
        layout: `csv` and `json` have every column of `llmtrack.compare`, unrounded.
        tracking_uri: the store.

    Raises:
        UsageError: as `llmtrack.compare`, or a column does not exist.
        TrackingError: the store cannot be read.
    """
    pairs, unmatched = pair_runs(
        select_all(baseline, experiment, tracking_uri), select_all(candidates, experiment, tracking_uri)
    )
    pairs = with_samples_of_pairs(pairs, tracking_uri)
    result = compare_pairs(pairs, metrics, unmatched, across_environments=across_environments)
    if layout.sort is not None:
        result = sort_comparisons(result, layout.sort)
    console = make_console()
    if layout.style in ("csv", "json"):
        frame = to_frame(result.comparisons, layout.columns)
        emit(console, frame_text(frame, layout.style))
        return
    table = differences_table(result)
    rows = [comparison.row() for comparison in result.distinct]
    values = ExtraValues(list(COLUMNS), lambda name: [row.get(name) for row in rows])
    show(console, "against the baseline", table, layout, values)


def _sorted(runs: Runs, sort: str | None) -> Runs:
    if sort is None:
        return runs
    name = sort.removeprefix("-")
    check_columns([name], column_names(runs))
    return runs.by(name, highest_first=sort.startswith("-"))
