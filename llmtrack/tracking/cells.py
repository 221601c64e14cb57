"""Which tracked runs stand for the same thing: one cell, the newest of it, and the baseline of a run.

A cell is a scenario of an experiment with one loaded model, on one machine, doing one work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

# A loaded model, as params tell it.
VARIANT = ("model_id", "backend", "device", "dtype", "quantization")
# What tells of a run which model it measured: a name or a folder can hold another one by now.
MODEL_DIGESTS = ("weights_digest", "config_digest", "tokenizer_digest")
# Asked alike, of the same work, on the same machine: whoever is content with such a run need not measure again.
ASKED_ALIKE = ("scenario_id", "workload_id", "environment_id")

_PLACE = ("experiment", "scenario", "environment_id")
_WORK = "workload_id"
# What only a loaded model tells, and what was asked for instead: all that a run has that failed before.
_AS_ASKED = {
    "model_id": "model",
    "device": "device_requested",
    "dtype": "dtype_requested",
    _WORK: "scenario_id",
}


def newest_of_each(runs: pd.DataFrame, across_work: bool = False) -> pd.DataFrame:
    """Keep the newest run of each cell; the order stays.

    A run that failed before its model was loaded is replaced by any newer one that was asked alike, and replaces none
    of which more is known.

    Args:
        runs: rows of `llmtrack.runs`.
        across_work: of a scenario that was measured on other work since, only the newest work counts.
    """
    asked = keys(runs, [_AS_ASKED.get(name, name) for name in _names(across_work)])
    cells = cells_of(runs, across_work)
    loaded = ask.present(runs, "model_id").tolist()
    seen: set[tuple[str, ...]] = set()
    seen_asked: set[tuple[str, ...]] = set()
    kept = [False] * len(runs)
    newest_first = runs.reset_index(drop=True).sort_values("start_time", ascending=False, kind="stable")
    for row in newest_first.index:
        kept[row] = cells[row] not in seen and (loaded[row] or asked[row] not in seen_asked)
        seen.add(cells[row])
        seen_asked.add(asked[row])
    return runs[kept]


def cells_of(runs: pd.DataFrame, across_work: bool = False) -> list[tuple[str, ...]]:
    """Return what tells the cell of each run from other cells; see `newest_of_each`."""
    names = _names(across_work)
    asked = keys(runs, [_AS_ASKED.get(name, name) for name in names])
    return [
        tuple(own or other for own, other in zip(cell, instead, strict=True))
        for cell, instead in zip(keys(runs, names), asked, strict=True)
    ]


def _names(across_work: bool) -> tuple[str, ...]:
    return (*_PLACE, *VARIANT, *(() if across_work else (_WORK,)))


def baseline_of(run: pd.Series, runs: pd.DataFrame) -> pd.Series | None:
    """Return the run that a run is compared with within its study, or None.

    A study that asks several things has several baselines: the one of the same work is meant, and where none is,
    the study's only one.
    """
    baselines = runs[ask.where(runs, "study_id", run.get("study_id")) & ask.marked(runs, "baseline")]
    same_work = baselines[ask.where(baselines, _WORK, run.get(_WORK))]
    if len(same_work):
        return same_work.iloc[0]
    return baselines.iloc[0] if len(baselines) == 1 else None


def counterpart(baselines: pd.DataFrame, run: pd.Series) -> pd.Series:
    """Return which of several runs, newest first, a run of another selection is compared with.

    It is the newest of the same work on the same machine, of the same variant if there is one; else the newest of the
    same work, else the newest.
    """
    on_machine = (_WORK, "environment_id")
    for names in ((*on_machine, *VARIANT), on_machine, (_WORK,)):
        same = baselines
        for name in names:
            same = same[ask.where(same, name, run.get(name))]
        if len(same):
            return same.iloc[0]
    return baselines.iloc[0]


def keys(runs: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of some columns for each run, as text; empty where they are missing."""
    columns = [
        runs[name].astype("string").fillna("").tolist() if name in runs.columns else [""] * len(runs)
        for name in names
    ]
    return list(zip(*columns, strict=True))


def in_order_of_time(runs: pd.DataFrame) -> pd.DataFrame:
    """Sort runs by the beginning of their study, and within it as they were measured."""
    began = runs.groupby("study_id", dropna=False)["start_time"].transform("min")
    return (
        runs.assign(_began=began)
        .sort_values(["_began", "study_id", "start_time", "end_time"], kind="stable")
        .drop(columns="_began")
        .reset_index(drop=True)
    )
