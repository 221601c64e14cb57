"""The compare command: show tracked runs side by side or against a baseline, and write or log the table."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmtrack import metrics as schema
from llmtrack.decide.comparability import differing_facts
from llmtrack.decide.compare import COLUMNS, CompareResult, Comparison, compare_pairs, to_frame
from llmtrack.decide.selection import Pair, pair_runs, runs_of_pairs, select_all
from llmtrack.decide.verdicts import named_warnings, with_samples, with_samples_of_pairs
from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.console import emit
from llmtrack.host.entry_points import named_experiment
from llmtrack.host.formatting import plural
from llmtrack.report.page.output import write_report
from llmtrack.report.page.reports import page_note
from llmtrack.report.sentences.takeaways import headline
from llmtrack.report.show import AS_TABLE, Layout, frame_text, print_lines, show
from llmtrack.report.tables.summary import split_by_task, summary_table, with_noise_floor
from llmtrack.report.tables.table import (
    DASH,
    Column,
    ExtraValues,
    Table,
    column_of_runs,
    shared_conditions,
    values_of_runs,
    with_differing_params,
)
from llmtrack.report.terminal import make_console, print_line
from llmtrack.tracked.frames import check_columns, column_names, pick
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs, why_empty

# Maximum characters of a pair's differences in a cell; longer ones go below the table.
_MOST_IN_A_CELL = 60
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
            or "no tracked run matches: widen the filters, or run an experiment first (mlflow run . -e baseline)"
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
        result = replace(result, comparisons=_sort_comparisons(result.comparisons, layout.sort))
    console = make_console()
    if layout.style in ("csv", "json"):
        frame = to_frame(result.comparisons)
        frame = frame if layout.columns is None else pick(frame, layout.columns)
        emit(console, frame_text(frame, layout.style))
        return
    result = replace(result, comparisons=_without_repetitions(result.comparisons))
    table = differences_table(result)
    rows = [comparison.row() for comparison in result.comparisons]
    values = ExtraValues(list(COLUMNS), lambda name: [row.get(name) for row in rows])
    show(console, "against the baseline", table, layout, values)


def differences_table(result: CompareResult) -> Table:
    """Lay out a comparison as a table."""
    pairs = result.pairs
    runs = runs_of_pairs(pairs)
    shared, _ = shared_conditions(runs)
    columns = [column_of_runs(name, runs) for name in runs.params]
    differing = {
        pair.candidate.run_id: _pair_differences(pair, columns) for pair in pairs if not pair.candidate.is_same_as
    }
    common = _common(list(differing.values()))
    listed = {run_id: ", ".join(text for text in texts if text not in common) for run_id, texts in differing.items()}
    long = {run_id: text for run_id, text in listed.items() if len(text) > _MOST_IN_A_CELL}
    titles = ["scenario", "metric", "baseline", "candidate", "difference"]
    comparisons = _without_repetitions(result.comparisons)
    rows = [_row(comparison, runs) for comparison in comparisons]
    run_ids = [comparison.pair.candidate.run_id for comparison in comparisons]
    if set(filter(None, listed.values())) - set(long.values()):
        titles.insert(1, "differs in")
        for row, run_id in zip(rows, run_ids, strict=True):
            row.insert(1, "see below" if run_id in long else listed.get(run_id) or DASH)
    notes = [
        f"{pair.candidate.name} differs in: {long[pair.candidate.run_id]}"
        for pair in pairs
        if pair.candidate.run_id in long
    ]
    return Table(
        conditions=(
            *shared,
            *_same_baseline(pairs),
            *study_conditions(pairs),
            *([f"all differ from it in: {', '.join(common)}"] if common else []),
        ),
        titles=tuple(titles),
        numeric=tuple(title in ("baseline", "candidate") for title in titles),
        rows=tuple(map(tuple, rows)),
        run_ids=tuple(run_ids),
        notes=(*notes, *result.notes),
        keys=tuple(title.replace(" ", "_") for title in titles),
    )


def _row(comparison: Comparison, runs: Runs) -> list[str]:
    difference = comparison.difference
    column = column_of_runs(difference.metric, runs)
    values = (
        DASH if math.isnan(value) else column.render(value) for value in (difference.baseline, difference.candidate)
    )
    unit = schema.metric(difference.metric).unit
    shown_unit = "" if unit == "-" or column.title != difference.metric else f", {unit}"
    mark = {"better": "+ ", "worse": "- "}.get(difference.verdict, "")
    return [comparison.pair.candidate.name, f"{column.title}{shown_unit}", *values, mark + difference.words]


def _without_repetitions(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Keep one row of a scenario that equals another one: it has no figures of its own."""
    seen: set[str] = set()
    kept = []
    for comparison in comparisons:
        candidate = comparison.pair.candidate
        if not candidate.is_same_as or candidate.run_id not in seen:
            kept.append(comparison)
        seen.add(candidate.run_id)
    return kept


def _common(differences: Sequence[Sequence[str]]) -> list[str]:
    """Return the differences common to several candidates, which are listed once."""
    if len(differences) < 2:
        return []
    return [text for text in differences[0] if all(text in texts for texts in differences)]


def _pair_differences(pair: Pair, columns: Sequence[Column]) -> list[str]:
    differences = []
    for column in columns:
        before, after = (column.cell_of(run) for run in (pair.baseline, pair.candidate))
        if before != after:
            differences.append(f"{column.title} {before} → {after}")
    if pair.baseline.environment_id != pair.candidate.environment_id:
        differences.append(f"another environment ({differing_facts(pair.baseline, pair.candidate)})")
    return differences


def _same_baseline(pairs: Sequence[Pair]) -> list[str]:
    names = {(pair.baseline.name, pair.baseline.run_id) for pair in pairs}
    return [f"baseline: {name} ({run_id[:8]})" for name, run_id in names] if len(names) == 1 else []


def model_and_device_conditions(runs: Runs) -> tuple[str, ...]:
    """Return the models and devices of runs, as conditions of a table."""
    titles = {"model_id": "model", "device": "device"}
    values = {title: _distinct(run.text(name) for run in runs) for name, title in titles.items()}
    return tuple(f"{title}: {value}" for title, value in values.items() if value)


def study_conditions(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return the studies of both sides, as conditions of a table."""
    baseline = _distinct(pair.baseline.study_id for pair in pairs)
    candidate = _distinct(pair.candidate.study_id for pair in pairs)
    if baseline == candidate:
        return (f"study: {baseline}",) if baseline else ()
    sides = {"baseline": baseline, "candidate": candidate}
    return tuple(f"study of the {side}: {studies}" for side, studies in sides.items() if studies)


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, values)))


def _sorted(runs: Runs, sort: str | None) -> Runs:
    if sort is None:
        return runs
    name = sort.removeprefix("-")
    check_columns([name], column_names(runs))
    return runs.by(name, highest_first=sort.startswith("-"))


def _sort_comparisons(comparisons: Sequence[Comparison], sort: str) -> list[Comparison]:
    """Sort comparisons by a column of `compare`, descending with a leading `-`; those without a value come last."""
    name = sort.removeprefix("-")
    check_columns([name], list(COLUMNS))
    values: list[tuple[Comparison, Any]] = [(comparison, comparison.row().get(name)) for comparison in comparisons]
    known = [(comparison, value) for comparison, value in values if value is not None and value == value]
    known.sort(key=lambda pair: pair[1], reverse=sort.startswith("-"))
    unknown = [comparison for comparison, value in values if value is None or value != value]
    return [*(comparison for comparison, _ in known), *unknown]
