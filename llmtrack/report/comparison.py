"""The compare command: show tracked runs side by side or against a baseline, and write or log the table."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmtrack import metrics as schema
from llmtrack.decide.comparability import differing_facts
from llmtrack.decide.compare import COLUMNS, Comparison, compare_pairs, runs_of_pairs, to_frame, with_samples_of_pairs
from llmtrack.decide.noise_floor import noise_floor_lines
from llmtrack.decide.selection import Pair, as_runs, pair_runs
from llmtrack.decide.verdicts import group_warnings, named_warnings, with_samples
from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.console import emit
from llmtrack.host.entry_points import named_experiment
from llmtrack.host.formatting import plural
from llmtrack.report.page.output import write_report
from llmtrack.report.page.reports import page_note
from llmtrack.report.sentences.takeaways import headline
from llmtrack.report.show import AS_TABLE, Layout, print_lines, show
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
from llmtrack.report.terminal import make_console, say
from llmtrack.tracked.frames import check_columns, column_names, pick
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs, why_empty

# Maximum characters of a pair's differences in a cell; longer ones go below the table.
_MOST_IN_A_CELL = 60
# Page formats show only a study's own columns and those that distinguish runs.
PAGES = ("markdown", "html", "latex")
APART: tuple[schema.Role, ...] = ("configuration", "work", "convention")


def compare_runs(
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
    **more: Any,
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
        more: further filters of `llmtrack.runs`.

    Raises:
        UsageError: no run matches, or a filter or column is invalid.
        TrackingError: the store cannot be used.
    """
    console = make_console()
    found = tracked_runs(experiment, study, model, "scenario", search, None, tracking_uri, **more)
    if not found:
        raise UsageError(
            why_empty(study, tracking_uri)
            or "no tracked run matches: widen the filters, or run an experiment first (mlflow run . -e baseline)"
        )
    found = with_samples(found, tracking_uri)
    tracked = _sorted((found if every else found.newest_of_each()).in_order_of_time(), layout.sort)
    table = with_noise_floor(summary_table(tracked, among=found), tracked)
    experiments = {run.experiment for run in tracked} - {""}
    if layout.columns is None and len(experiments) == 1:
        on_page = layout.style in PAGES and not layout.wide
        if on_page and len({run.study_id for run in tracked} - {""}) == 1:
            module = None
            with suppress(ExtensionError):  # show the runs even if the plug-in is broken
                module = named_experiment(experiments.pop())
            declared = getattr(module, "DECLARED", None)
            own = declared.table if declared else None
            table = with_noise_floor(summary_table(tracked, among=found, own=own), tracked)
        else:
            table = with_differing_params(table, tracked, APART if on_page else None)
    title = f"{len(tracked)} of {plural(len(found), 'tracked run')}"
    parts = split_by_task(tracked)
    if console.is_terminal and layout.style == "table" and layout.columns is None and len(parts) > 1:
        # Files get one table for further processing; on a terminal it would mostly consist of dashes.
        for name, part in parts.items():
            table_of_part = summary_table(part, among=found)
            if name == tuple(parts)[-1]:
                table_of_part = with_noise_floor(table_of_part, tracked)
            show(console, f"{title}: {name}", table_of_part, layout)
    else:
        show(console, title, table, layout, values_of_runs(tracked))
    if warnings:
        # csv and json are read by programs.
        beside = make_console(stderr=True) if layout.style in ("csv", "json") else console
        print_lines(beside, [line for run in tracked for line in named_warnings(run)])
    if output is not None:
        files = write_report(output, "llmtrack compare", table, tracked)
        if layout.style == "table":
            say(console, f"Written: {', '.join(str(path) for path in files.values())}")
    if "MLFLOW_RUN_ID" in os.environ:
        from llmtrack.tracking.environment import environment
        from llmtrack.tracking.write.tracker import Tracker

        tracker = Tracker.open(tracking_uri)
        chosen = {"experiment": experiment, "study": study, "model": model, "search": search}
        question = "How do the tracked runs compare?"
        own = tracker.start_study(
            "compare",
            question,
            {name: value for name, value in chosen.items() if value is not None} | {"every": every},
            environment(),
        )
        with tempfile.TemporaryDirectory() as folder:
            files = write_report(Path(folder), "llmtrack compare", table, tracked)
            note = page_note(question, [f"{plural(len(tracked), 'run')} side by side."], {"": table}, own.experiment_id)
            tracker.finish_study(own, "finished", note=note, files=files, metrics=headline(tracked))


def compare_with_baseline(
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
        as_runs(baseline, experiment, tracking_uri), as_runs(candidates, experiment, tracking_uri)
    )
    pairs = with_samples_of_pairs(pairs, tracking_uri)
    compared = compare_pairs(pairs, metrics, across_environments=across_environments)
    if layout.sort is not None:
        compared = _in_order(compared, layout.sort)
    console = make_console()
    if layout.style in ("csv", "json"):
        frame = to_frame(compared)
        frame = frame if layout.columns is None else pick(frame, layout.columns)
        as_json = layout.style == "json"
        emit(console, frame.to_json(orient="records", indent=1) + "\n" if as_json else frame.to_csv(index=False))
        return
    # The one row of a scenario that equals another gives no figures.
    compared = _without_repetitions(compared)
    table = differences_table(compared, pairs, unmatched)
    rows = [each.row() for each in compared]
    show(
        console,
        "against the baseline",
        table,
        layout,
        ExtraValues(list(COLUMNS), lambda name: [row.get(name) for row in rows]),
    )


def differences_table(compared: Sequence[Comparison], pairs: Sequence[Pair], unmatched: Sequence[str] = ()) -> Table:
    """Lay out a comparison as a table.

    Args:
        compared: result of `compare_pairs` for the pairs.
        unmatched: candidates without a counterpart.
    """
    runs = runs_of_pairs(pairs)
    shared, _ = shared_conditions(runs)
    columns = [column_of_runs(name, runs) for name in runs.params]
    differs = {pair.candidate.run_id: _what_differs(pair, columns) for pair in pairs if not pair.candidate.is_same_as}
    everywhere = _in_all(list(differs.values()))
    listed = {run_id: ", ".join(each for each in texts if each not in everywhere) for run_id, texts in differs.items()}
    long = {run_id: text for run_id, text in listed.items() if len(text) > _MOST_IN_A_CELL}
    titles = ["scenario", "metric", "baseline", "candidate", "difference"]
    compared = _without_repetitions(compared)
    rows = [_row(each, runs) for each in compared]
    run_ids = [each.pair.candidate.run_id for each in compared]
    if set(filter(None, listed.values())) - set(long.values()):
        titles.insert(1, "differs in")
        for row, run_id in zip(rows, run_ids, strict=True):
            row.insert(1, "see below" if run_id in long else listed.get(run_id) or DASH)
    return Table(
        conditions=(
            *shared,
            *_same_baseline(pairs),
            *studies_of(pairs),
            *([f"all differ from it in: {', '.join(everywhere)}"] if everywhere else []),
        ),
        titles=tuple(titles),
        numeric=tuple(title in ("baseline", "candidate") for title in titles),
        rows=tuple(map(tuple, rows)),
        run_ids=tuple(run_ids),
        notes=(
            *(
                f"{pair.candidate.name} differs in: {long[run_id]}"
                for pair in pairs
                if (run_id := pair.candidate.run_id) in long
            ),
            *(f"{name} has no counterpart in the baseline" for name in unmatched),
            *(
                ["--across-environments compares speed and memory of different machines or versions, too"]
                if any(each.other_environments for each in compared)
                else []
            ),
            *noise_floor_lines(runs, *dict.fromkeys(each.difference.metric for each in compared)),
            *(f"read with care: {line}" for line in _doubts(compared, len(runs))),
        ),
        keys=tuple(title.replace(" ", "_") for title in titles),
    )


def _row(compared: Comparison, runs: Runs) -> list[str]:
    difference = compared.difference
    column = column_of_runs(difference.metric, runs)
    values = (
        DASH if math.isnan(value) else column.render(value) for value in (difference.baseline, difference.candidate)
    )
    unit = schema.metric(difference.metric).unit
    shown_unit = "" if unit == "-" or column.title != difference.metric else f", {unit}"
    mark = {"better": "+ ", "worse": "- "}.get(difference.verdict, "")
    return [compared.pair.candidate.name, f"{column.title}{shown_unit}", *values, mark + difference.words]


def _without_repetitions(compared: Sequence[Comparison]) -> list[Comparison]:
    """Keep one row of a scenario that equals another one: it has no figures of its own."""
    first = {each.pair.candidate.run_id: number for number, each in reversed([*enumerate(compared)])}
    return [
        each
        for number, each in enumerate(compared)
        if not each.pair.candidate.is_same_as or first[each.pair.candidate.run_id] == number
    ]


def _in_all(differences: Sequence[Sequence[str]]) -> list[str]:
    """Return the differences common to all of several candidates, which are listed once."""
    if len(differences) < 2:
        return []
    return [each for each in differences[0] if all(each in other for other in differences)]


def _what_differs(pair: Pair, columns: Sequence[Column]) -> list[str]:
    differences = []
    for column in columns:
        before, after = (column.cell_of(run) for run in (pair.baseline, pair.candidate))
        if before != after:
            differences.append(f"{column.title} {before} → {after}")
    if pair.baseline.environment_id != pair.candidate.environment_id:
        differences.append(f"another environment ({differing_facts(pair.baseline, pair.candidate)})")
    return differences


def _doubts(compared: Sequence[Comparison], runs: int) -> list[str]:
    """Return the warnings of the compared runs, each kind once."""
    lines = dict.fromkeys(line for each in compared for line in each.difference.doubts)
    warned = [(name, line) for name, _, line in (each.partition(": ") for each in lines)]
    return group_warnings(warned, runs)


def _same_baseline(pairs: Sequence[Pair]) -> list[str]:
    names = {(pair.baseline.name, pair.baseline.run_id) for pair in pairs}
    return [f"baseline: {name} ({run_id[:8]})" for name, run_id in names] if len(names) == 1 else []


def models_and_devices(runs: Runs) -> tuple[str, ...]:
    """Return the models and devices of runs, as conditions of a table."""
    found = (("model", "model_id"), ("device", "device"))
    values = (
        (title, ", ".join(dict.fromkeys(filter(None, (run.text(name) for run in runs))))) for title, name in found
    )
    return tuple(f"{title}: {value}" for title, value in values if value)


def studies_of(pairs: Sequence[Pair]) -> tuple[str, ...]:
    """Return the studies of both sides, as conditions of a table."""
    sides = [
        ", ".join(dict.fromkeys(filter(None, (run.study_id for run in side))))
        for side in ([pair.baseline for pair in pairs], [pair.candidate for pair in pairs])
    ]
    if sides[0] == sides[1]:
        return (f"study: {sides[0]}",) if sides[0] else ()
    return tuple(
        f"study of the {name}: {side}" for name, side in zip(("baseline", "candidate"), sides, strict=True) if side
    )


def _sorted(runs: Runs, sort: str | None) -> Runs:
    if sort is None:
        return runs
    name = sort.removeprefix("-")
    check_columns([name], column_names(runs))
    return runs.by(name, highest_first=sort.startswith("-"))


def _in_order(compared: Sequence[Comparison], sort: str) -> list[Comparison]:
    """Sort comparisons by a column of `compare`, descending with a leading `-`; those without a value come last."""
    name = sort.removeprefix("-")
    check_columns([name], list(COLUMNS))

    values: list[tuple[Comparison, Any]] = [(each, each.row().get(name)) for each in compared]
    known = [(each, value) for each, value in values if value is not None and value == value]
    known.sort(key=lambda each: each[1], reverse=sort.startswith("-"))
    without = [each for each, value in values if value is None or value != value]
    return [*(each for each, _ in known), *without]
