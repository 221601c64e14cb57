"""Lay out a comparison: a row for each metric of each pair of runs, with what the two runs differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack.decide.comparability import differing_facts
from llmtrack.decide.comparing import runs_of
from llmtrack.decide.floor import say_floor
from llmtrack.decide.matching import Pair
from llmtrack.report.columns import cell, column_of, shared_conditions
from llmtrack.report.table import DASH, Table
from llmtrack.tracking import ask
from llmtrack.tracking.cells import params_in

if TYPE_CHECKING:
    import pandas as pd


# Characters of what a pair differs in that stand beside its figures; more stands below the table, once.
_MOST_IN_A_CELL = 60


def differences_table(found: pd.DataFrame, pairs: Sequence[Pair], unmatched: Sequence[str] = ()) -> Table:
    """Return a comparison as a table.

    Args:
        found: what `llmtrack.compare` returned of the pairs.
        pairs: the runs.
        unmatched: candidates that have no counterpart.
    """
    runs = runs_of(pairs)
    shared, _ = shared_conditions(runs)
    differs = {str(pair.candidate["run_id"]): _what_differs(pair, runs) for pair in pairs}
    everywhere = _in_all(list(differs.values()))
    asked = {
        run_id: ", ".join(each for each in found if each not in everywhere)
        for run_id, found in differs.items()
    }
    long = {run_id: text for run_id, text in asked.items() if len(text) > _MOST_IN_A_CELL}
    titles = ["scenario", "metric", "baseline", "candidate", "difference"]
    rows = [_row(line, runs) for line in found.to_dict("records")]
    if any(asked.values()):
        titles.insert(1, "differs in")
        for row, run_id in zip(rows, found["run_id"], strict=True):
            row.insert(1, "see below" if run_id in long else asked[run_id] or DASH)
    return Table(
        conditions=(
            *shared,
            *_same_baseline(pairs),
            *([f"all differ from it in: {', '.join(everywhere)}"] if everywhere else []),
        ),
        titles=tuple(titles),
        numeric=tuple(title in ("baseline", "candidate") for title in titles),
        rows=tuple(map(tuple, rows)),
        run_ids=tuple(found["run_id"]),
        notes=(
            *(
                f"{ask.name(pair.candidate)} differs in: {long[run_id]}"
                for pair in pairs
                if (run_id := str(pair.candidate["run_id"])) in long
            ),
            *(f"{name} has no counterpart in the baseline" for name in unmatched),
            *_other_machines(found),
            *say_floor(runs, *dict.fromkeys(found["metric"])),
            *(f"read with care: {line}" for line in _doubts(found)),
        ),
        keys=tuple(title.replace(" ", "_") for title in titles),
    )


def _row(line: Mapping[Any, Any], runs: pd.DataFrame) -> list[str]:
    import pandas as pd

    column = column_of(line["metric"], runs)
    values = (
        DASH if pd.isna(line[side]) else column.render(line[side]) for side in ("baseline", "candidate")
    )
    unit = "" if line["unit"] == "-" or column.title != line["metric"] else f", {line['unit']}"
    mark = {"better": "+ ", "worse": "- "}.get(line["verdict"], "")
    return [line["scenario"], f"{column.title}{unit}", *values, mark + line["words"]]


def _in_all(found: Sequence[Sequence[str]]) -> list[str]:
    """Return what all of several candidates differ in alike, of which one line is enough."""
    return [each for each in found[0] if all(each in other for other in found)] if len(found) > 1 else []


def _other_machines(found: pd.DataFrame) -> list[str]:
    refused = found["words"].astype(str).str.contains("different environments").any()
    return (
        ["--across-environments compares speed and memory of different machines or versions, too"]
        if refused
        else []
    )


def _what_differs(pair: Pair, runs: pd.DataFrame) -> list[str]:
    found = []
    for name in params_in(runs):
        column = column_of(name, runs)
        one, other = (cell(run, column) for run in (pair.baseline, pair.candidate))
        if one != other:
            found.append(f"{column.title} {one} → {other}")
    if not ask.equal(pair.baseline, pair.candidate, "environment_id"):
        found.append(f"another environment ({differing_facts(pair.baseline, pair.candidate)})")
    return found


def _doubts(found: pd.DataFrame) -> list[str]:
    """Return the warnings of the runs that are compared, each once."""
    return list(dict.fromkeys(line for text in found["doubts"].dropna() for line in text.split("\n")))


def _same_baseline(pairs: Sequence[Pair]) -> list[str]:
    names = {(ask.name(pair.baseline), str(pair.baseline["run_id"])) for pair in pairs}
    return [f"baseline: {name} ({run_id[:8]})" for name, run_id in names] if len(names) == 1 else []
