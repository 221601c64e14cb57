"""The compare command: show tracked runs side by side or against a baseline, and write or log the table."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.decide.comparing import as_runs, compare_pairs, runs_of_pairs, with_samples_of
from llmtrack.decide.noise_floor import say_floor
from llmtrack.decide.selection import Pair, match
from llmtrack.decide.verdicts import differing_facts, grouped, own_warnings, with_samples
from llmtrack.errors import ExtensionError, UsageError
from llmtrack.host.console import emit
from llmtrack.host.entry_points import named_experiment
from llmtrack.host.formatting import plural
from llmtrack.report.page.study import page_note
from llmtrack.report.page.write import print_lines, write_report
from llmtrack.report.sentences.takeaways import headline
from llmtrack.report.show import AS_TABLE, Layout, show
from llmtrack.report.tables.columns import (
    Further,
    cell,
    column_of_runs,
    further,
    shared_conditions,
    with_differing_params,
)
from llmtrack.report.tables.table import DASH, Column, Table, split_by_task, summary_table, with_noise_floor
from llmtrack.report.terminal import make_console, say
from llmtrack.tracked.frames import check_columns, column_names, pick
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import tracked_runs, why_empty

if TYPE_CHECKING:
    import pandas as pd

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
        show(console, title, table, layout, further(tracked))
    if warnings:
        # csv and json are read by programs.
        beside = make_console(stderr=True) if layout.style in ("csv", "json") else console
        print_lines(beside, [line for run in tracked for line in own_warnings(run)])
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

    pairs, unmatched = match(as_runs(baseline, experiment, tracking_uri), as_runs(candidates, experiment, tracking_uri))
    pairs = with_samples_of(pairs, tracking_uri)
    found = compare_pairs(pairs, metrics, across_environments=across_environments)
    found = _sorted_frame(found, layout.sort)
    chosen = found if layout.columns is None else pick(found, layout.columns)
    console = make_console()
    if layout.style == "csv":
        emit(console, chosen.to_csv(index=False))
    elif layout.style == "json":
        emit(console, chosen.to_json(orient="records", indent=1) + "\n")
    else:
        table = differences_table(found, pairs, unmatched)
        show(console, "against the baseline", table, layout, _further(found))


def differences_table(found: pd.DataFrame, pairs: Sequence[Pair], unmatched: Sequence[str] = ()) -> Table:
    """Return a comparison as a table.

    Args:
        found: result of `llmtrack.compare` for the pairs.
        unmatched: candidates without a counterpart.
    """
    runs = runs_of_pairs(pairs)
    shared, _ = shared_conditions(runs)
    columns = [column_of_runs(name, runs) for name in runs.params]
    differs = {pair.candidate.run_id: _what_differs(pair, columns) for pair in pairs if not pair.candidate.is_same_as}
    everywhere = _in_all(list(differs.values()))
    asked = {run_id: ", ".join(each for each in found if each not in everywhere) for run_id, found in differs.items()}
    long = {run_id: text for run_id, text in asked.items() if len(text) > _MOST_IN_A_CELL}
    titles = ["scenario", "metric", "baseline", "candidate", "difference"]
    # A scenario that equals another one has no figures of its own: one row says so.
    alike = {pair.candidate.run_id for pair in pairs if pair.candidate.is_same_as}
    found = found[~(found["run_id"].isin(alike) & found["run_id"].duplicated())]
    rows = [_row(line, runs) for line in found.to_dict("records")]
    if set(filter(None, asked.values())) - set(long.values()):
        titles.insert(1, "differs in")
        for row, run_id in zip(rows, found["run_id"], strict=True):
            row.insert(1, "see below" if run_id in long else asked.get(run_id) or DASH)
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
        run_ids=tuple(found["run_id"]),
        notes=(
            *(
                f"{pair.candidate.name} differs in: {long[run_id]}"
                for pair in pairs
                if (run_id := pair.candidate.run_id) in long
            ),
            *(f"{name} has no counterpart in the baseline" for name in unmatched),
            *_other_machines(found),
            *say_floor(runs, *dict.fromkeys(found["metric"])),
            *(f"read with care: {line}" for line in _doubts(found, len(runs))),
        ),
        keys=tuple(title.replace(" ", "_") for title in titles),
    )


def _row(line: Mapping[Any, Any], runs: Runs) -> list[str]:
    import pandas as pd

    column = column_of_runs(line["metric"], runs)
    values = (DASH if pd.isna(line[side]) else column.render(line[side]) for side in ("baseline", "candidate"))
    unit = "" if line["unit"] == "-" or column.title != line["metric"] else f", {line['unit']}"
    mark = {"better": "+ ", "worse": "- "}.get(line["verdict"], "")
    return [line["scenario"], f"{column.title}{unit}", *values, mark + line["words"]]


def _in_all(found: Sequence[Sequence[str]]) -> list[str]:
    """Return the differences common to all of several candidates, which are listed once."""
    return [each for each in found[0] if all(each in other for other in found)] if len(found) > 1 else []


def _other_machines(found: pd.DataFrame) -> list[str]:
    refused = found["words"].astype(str).str.contains("different environments").any()
    return ["--across-environments compares speed and memory of different machines or versions, too"] if refused else []


def _what_differs(pair: Pair, columns: Sequence[Column]) -> list[str]:
    found = []
    for column in columns:
        one, other = (cell(run, column) for run in (pair.baseline, pair.candidate))
        if one != other:
            found.append(f"{column.title} {one} → {other}")
    if pair.baseline.environment_id != pair.candidate.environment_id:
        found.append(f"another environment ({differing_facts(pair.baseline, pair.candidate)})")
    return found


def _doubts(found: pd.DataFrame, runs: int) -> list[str]:
    """Return the warnings of the compared runs, each kind once."""
    lines = dict.fromkeys(line for text in found["doubts"].dropna() for line in text.split("\n"))
    warned = [(name, line) for name, _, line in (each.partition(": ") for each in lines)]
    return grouped(warned, runs)


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


def _sorted_frame(table: pd.DataFrame, sort: str | None) -> pd.DataFrame:
    if sort is None:
        return table
    name = sort.removeprefix("-")
    pick(table, [name])
    ascending = not sort.startswith("-")
    return table.sort_values(name, ascending=ascending, na_position="last", kind="stable").reset_index(drop=True)


def _further(found: pd.DataFrame) -> Further:
    """Return all values of a comparison's rows."""
    return Further(
        list(found.columns), lambda name: found[name].astype(object).where(found[name].notna(), None).tolist()
    )
