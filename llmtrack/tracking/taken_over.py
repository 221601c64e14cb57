"""The runs of earlier studies that a resumed study took over: they are its own, and its baseline stays its baseline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

TAG = "llmtrack.taken_over"


def taken_over_tag(earlier: pd.DataFrame) -> dict[str, str]:
    """Return the tag of a study that took over runs: each run's id, its present scenario, and whether it is the baseline."""
    if earlier.empty:
        return {}
    held = {
        str(run["run_id"]): [ask.text(run, "scenario"), ask.is_true(run, "baseline")]
        for _, run in earlier.iterrows()
    }
    return {TAG: json.dumps(held, separators=(",", ":"))}


def link_to(run: pd.Series) -> str:
    """Say which run is taken over."""
    return f"{ask.text(run, 'experiment')}, run {ask.text(run, 'run_id')}"


def taken_over(tags: Mapping[str, str]) -> dict[str, tuple[str, bool]]:
    """Return the scenario's name, and whether it is the baseline, of each run that a study with these tags took over."""
    try:
        return {
            str(run_id): (str(name), bool(base)) for run_id, (name, base) in json.loads(tags[TAG]).items()
        }
    except (KeyError, ValueError, TypeError, AttributeError):
        return {}


def as_own(runs: pd.DataFrame, study_id: str, held: Mapping[str, tuple[str, bool]]) -> pd.DataFrame:
    """Return runs of which those that a study took over are told as its own."""
    ours = runs["run_id"].isin(list(held))
    if not ours.any():
        return runs
    runs = runs.copy()
    runs.loc[ours, "study_id"] = study_id
    runs.loc[ours, "scenario"] = [held[run_id][0] for run_id in runs.loc[ours, "run_id"]]
    runs.loc[ours, "baseline"] = [held[run_id][1] for run_id in runs.loc[ours, "run_id"]]
    return runs
