"""Which run of the baseline a candidate's run is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.tracking import ask
from llmtrack.tracking.cells import in_order_of_time

if TYPE_CHECKING:
    import pandas as pd

CELL = ["experiment", "scenario", "model", "environment_id"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs to compare, as rows of `llmtrack.runs`; equal only to itself."""

    baseline: pd.Series
    candidate: pd.Series


def match(baselines: pd.DataFrame, candidates: pd.DataFrame) -> tuple[list[Pair], list[str]]:
    """Pair runs, and name the scenarios that have no counterpart.

    A baseline of one scenario stands against every candidate. Otherwise scenarios of one name are paired. Of
    several runs of one scenario the newest is taken; of the baselines, the newest of the same work and machine.

    Args:
        baselines: rows of `llmtrack.runs`, newest first.
        candidates: likewise.

    Raises:
        UsageError: no two different runs can be paired.
    """
    finished = ask.finished(baselines)
    if finished.empty:
        raise UsageError(f"the baseline has no finished run{_why(baselines)}")
    single = len(finished[["experiment", "scenario"]].drop_duplicates()) == 1
    pairs, unmatched = [], []
    for _, candidate in in_order_of_time(newest_of_cell(candidates)).iterrows():
        counterparts = finished if single else _of_the_same_name(finished, candidate)
        if counterparts.empty:
            unmatched.append(ask.name(candidate))
            continue
        baseline = _closest(counterparts, candidate)
        if baseline["run_id"] != candidate["run_id"]:
            pairs.append(Pair(baseline, candidate))
    if not pairs and unmatched:
        there = ", ".join(sorted(map(str, finished["scenario"].unique()))[:5])
        raise UsageError(
            f"no scenario is in both: the baseline has {there}; the candidate {', '.join(unmatched[:5])}"
        )
    if not pairs:
        raise UsageError("baseline and candidate are the same run: there is nothing to compare")
    return pairs, unmatched


def newest_of_cell(runs: pd.DataFrame) -> pd.DataFrame:
    """Keep the newest run of each scenario, model and environment; the order stays."""
    if runs.empty:
        return runs
    keys = runs.reindex(columns=CELL).astype("string").fillna("")
    newest = runs.assign(_key=keys.agg("\x1f".join, axis=1)).sort_values(
        "start_time", ascending=False, kind="stable"
    )
    kept = newest.drop_duplicates("_key").index
    return runs[runs.index.isin(kept)]


def _of_the_same_name(baselines: pd.DataFrame, candidate: pd.Series) -> pd.DataFrame:
    named = baselines[ask.where(baselines, "scenario", candidate.get("scenario"))]
    same_experiment = named[ask.where(named, "experiment", candidate.get("experiment"))]
    return same_experiment if len(same_experiment) else named


def _closest(baselines: pd.DataFrame, candidate: pd.Series) -> pd.Series:
    """Return the newest of the same work and machine, else of the same work, else the newest."""
    for keys in (["workload_id", "environment_id"], ["workload_id"]):
        same = baselines
        for key in keys:
            same = same[ask.where(same, key, candidate.get(key))]
        if len(same):
            return same.iloc[0]
    return baselines.iloc[0]


def _why(runs: pd.DataFrame) -> str:
    return f": {ask.name(runs.iloc[0])} {ask.state(runs.iloc[0])}" if len(runs) else ""
