"""Which run of the baseline a candidate's run is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.tracking import ask
from llmtrack.tracking.cells import counterpart, in_order_of_time, newest_of_each

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Pair:
    """Two runs to compare, as rows of `llmtrack.runs`; equal only to itself."""

    baseline: pd.Series
    candidate: pd.Series


def match(baselines: pd.DataFrame, candidates: pd.DataFrame) -> tuple[list[Pair], list[str]]:
    """Pair runs, and name the scenarios that have no counterpart.

    A baseline of one scenario stands against every candidate. Otherwise scenarios of one name are paired. Of
    several runs of one cell (see `tracking.cells`) the newest is taken, whatever its work; of the baselines, the
    newest of the same work and machine, of the same variant if there is one.

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
    for _, candidate in in_order_of_time(newest_of_each(candidates, across_work=True)).iterrows():
        counterparts = finished if single else _of_the_same_name(finished, candidate)
        if counterparts.empty:
            unmatched.append(ask.name(candidate))
            continue
        baseline = counterpart(counterparts, candidate)
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


def _of_the_same_name(baselines: pd.DataFrame, candidate: pd.Series) -> pd.DataFrame:
    named = baselines[ask.where(baselines, "scenario", candidate.get("scenario"))]
    same_experiment = named[ask.where(named, "experiment", candidate.get("experiment"))]
    return same_experiment if len(same_experiment) else named


def _why(runs: pd.DataFrame) -> str:
    return f": {ask.name(runs.iloc[0])} {ask.state(runs.iloc[0])}" if len(runs) else ""
