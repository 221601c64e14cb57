"""Lay out a comparison with a baseline: a row per pair and metric, and what the runs differ in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from llmtrack import metrics as schema
from llmtrack.decide.comparability import differing_facts
from llmtrack.decide.compare import CompareResult, Comparison
from llmtrack.decide.selection import Pair, runs_of_pairs
from llmtrack.report.tables.table import DASH, Column, Table, column_of_runs, shared_conditions
from llmtrack.tracked.runs import Runs

# Maximum characters of a pair's differences in a cell; longer ones go below the table.
_MOST_IN_A_CELL = 60


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
    rows = [_row(comparison, runs) for comparison in result.distinct]
    run_ids = [comparison.pair.candidate.run_id for comparison in result.distinct]
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
