"""Lay out a comparison: a row for each metric of each pair of runs, with what the two runs differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack.decide.comparability import differing_facts
from llmtrack.decide.matching import Pair
from llmtrack.report.columns import cell, column_of, shared_conditions
from llmtrack.report.table import DASH, Table
from llmtrack.tracking import ask
from llmtrack.tracking.cells import params_in

if TYPE_CHECKING:
    import pandas as pd


def differences_table(found: pd.DataFrame, pairs: Sequence[Pair], unmatched: Sequence[str] = ()) -> Table:
    """Return a comparison as a table.

    Args:
        found: what `llmtrack.compare` returned of the pairs.
        pairs: the runs.
        unmatched: candidates that have no counterpart.
    """
    import pandas as pd

    runs = pd.DataFrame([run for pair in pairs for run in (pair.baseline, pair.candidate)])
    runs = runs.drop_duplicates("run_id").infer_objects()
    shared, _ = shared_conditions(runs)
    asked = {str(pair.candidate["run_id"]): _what_differs(pair, runs) for pair in pairs}
    titles = ["scenario", "metric", "baseline", "candidate", "difference"]
    rows = [_row(line, runs) for line in found.to_dict("records")]
    if any(asked.values()):
        titles.insert(1, "differs in")
        for row, run_id in zip(rows, found["run_id"], strict=True):
            row.insert(1, asked[run_id] or DASH)
    return Table(
        conditions=(*shared, *_same_baseline(pairs)),
        titles=tuple(titles),
        numeric=tuple(title in ("baseline", "candidate") for title in titles),
        rows=tuple(map(tuple, rows)),
        run_ids=tuple(found["run_id"]),
        notes=(
            *(f"{name} has no counterpart in the baseline" for name in unmatched),
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


def _what_differs(pair: Pair, runs: pd.DataFrame) -> str:
    found = []
    for name in params_in(runs):
        column = column_of(name, runs)
        one, other = (cell(run, column) for run in (pair.baseline, pair.candidate))
        if one != other:
            found.append(f"{column.title} {one} → {other}")
    if not ask.equal(pair.baseline, pair.candidate, "environment_id"):
        found.append(f"another environment ({differing_facts(pair.baseline, pair.candidate)})")
    return ", ".join(found)


def _doubts(found: pd.DataFrame) -> list[str]:
    """Return the warnings of the runs that are compared, each once."""
    return list(dict.fromkeys(line for text in found["doubts"].dropna() for line in text.split("\n")))


def _same_baseline(pairs: Sequence[Pair]) -> list[str]:
    names = {(ask.name(pair.baseline), str(pair.baseline["run_id"])) for pair in pairs}
    return [f"baseline: {name} ({run_id[:8]})" for name, run_id in names] if len(names) == 1 else []
