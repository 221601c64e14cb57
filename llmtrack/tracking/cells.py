"""Choose which tracked runs stand side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

SAME_CELL = ["experiment", "scenario", "model_id", "device", "dtype", "environment_id", "workload_id"]


def newest_of_each(runs: pd.DataFrame) -> pd.DataFrame:
    """Keep the newest run of each cell (experiment, scenario, model, device, dtype, machine, workload)."""
    ordered = runs.sort_values("start_time", kind="stable")
    keys = ordered[SAME_CELL].astype("string").fillna("")
    return ordered[~keys.duplicated(keep="last")].reset_index(drop=True)


def in_order_of_time(runs: pd.DataFrame) -> pd.DataFrame:
    """Sort runs by the beginning of their study, and within it as they were measured."""
    began = runs.groupby("study_id", dropna=False)["start_time"].transform("min")
    return (
        runs.assign(_began=began)
        .sort_values(["_began", "study_id", "start_time", "end_time"], kind="stable")
        .drop(columns="_began")
        .reset_index(drop=True)
    )
