"""Which run of the baseline a candidate's run is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError
from llmtrack.tracking import ask
from llmtrack.tracking.cells import (
    TOLD_APART_BY,
    configuration,
    counterpart,
    in_order_of_time,
    keys,
    newest_of_each,
    records,
)

if TYPE_CHECKING:
    import pandas as pd


_NAME = ("experiment", "scenario")


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
    named = keys(finished, _NAME)
    configured_by = configuration(finished)
    rows = records(finished, (*TOLD_APART_BY, *configured_by))
    pairs, unmatched = [], []
    asked = in_order_of_time(newest_of_each(candidates, across_work=True))
    for name, (_, candidate) in zip(keys(asked, _NAME), asked.iterrows(), strict=True):
        there = range(len(rows)) if len(set(named)) == 1 else _of_the_same_name(named, name)
        if not there:
            unmatched.append(ask.name(candidate))
            continue
        chosen = counterpart([rows[place] for place in there], candidate, configured_by)
        baseline = finished.iloc[there[chosen]]
        if baseline["run_id"] != candidate["run_id"]:
            pairs.append(Pair(baseline, candidate))
    if not pairs and unmatched:
        known = ", ".join(sorted(map(str, finished["scenario"].unique()))[:5])
        raise UsageError(
            f"no scenario is in both: the baseline has {known}; the candidate {', '.join(unmatched[:5])}"
        )
    if not pairs:
        raise UsageError("baseline and candidate are the same run: there is nothing to compare")
    return pairs, unmatched


def _of_the_same_name(named: Sequence[tuple[str, ...]], candidate: tuple[str, ...]) -> Sequence[int]:
    """Return which of some runs, by experiment and scenario, have a candidate's scenario, of its experiment if any are."""
    alike = [place for place, (_, scenario) in enumerate(named) if scenario == candidate[1] != ""]
    return [place for place in alike if named[place] == candidate] or alike


def _why(runs: pd.DataFrame) -> str:
    return f": {ask.name(runs.iloc[0])} {ask.state(runs.iloc[0])}" if len(runs) else ""
