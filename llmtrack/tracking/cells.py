"""Which tracked runs stand for the same thing: one cell, the newest of it, and the baseline of a run.

A cell is a scenario of an experiment on one machine in one configuration: one loaded model, doing one work in one way. What
makes two runs two configurations, the roles of the params in `metrics/` say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.tracking import ask
from llmtrack.tracking.artifacts import SAMPLES
from llmtrack.tracking.frame import ID_COLUMNS, PARAM_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

# Column of runs that holds how far equal settings differed where each was measured; see `decide.floor`.
FLOORS = "noise_floors"
# Column of runs that holds how many comparisons the study of each makes; see `decide.family`.
FAMILY = "comparisons"
# Columns that `decide.verdicts.with_samples` adds.
EVIDENCE = (SAMPLES, FLOORS, FAMILY)
# A loaded model, as params tell it.
VARIANT = ("model_id", "backend", "device", "dtype", "quantization")
# What tells of a run which model it measured: a name or a folder can hold another one by now.
MODEL_DIGESTS = ("weights_digest", "config_digest", "tokenizer_digest")
# What makes two runs runs of the same loaded model.
LOADED = (*VARIANT, *(f"env.{name}" for name in MODEL_DIGESTS))
# The same of the model that a run was compared with.
REFERENCE_DIGESTS = tuple(schema.REFERENCE_TAG_PREFIX + name for name in MODEL_DIGESTS)
# Asked alike, of the same work, on the same machine: whoever is content with such a run need not measure again.
ASKED_ALIKE = ("scenario_id", "workload_id", "environment_id")

_PLACE = ("experiment", "scenario", "environment_id")
_WORK = "workload_id"
# What a counterpart is chosen by, what counts most first.
TOLD_APART_BY = (_WORK, "environment_id", *VARIANT)
# What only a loaded model tells, and what was asked for instead: all that a run has that failed before.
_AS_ASKED = {"model_id": "model", "device": "device_requested", "dtype": "dtype_requested"}


def newest_of_each(runs: pd.DataFrame, across_work: bool = False) -> pd.DataFrame:
    """Keep the newest run of each cell; the order stays.

    A run that is not finished tells less of its configuration: it is replaced by any newer one that was asked alike, and
    replaces none of which more is known.

    Args:
        runs: rows of `llmtrack.runs`.
        across_work: of a scenario that was measured on other work since, only the newest work counts.
    """
    place = [*_PLACE, *(_AS_ASKED.get(name, name) for name in VARIANT)]
    asked = keys(runs, place if across_work else [*place, "scenario_id"])
    cells = cells_of(runs, across_work)
    finished = ask.where(runs, "status", ask.FINISHED).tolist()
    seen: set[tuple[str, ...]] = set()
    seen_asked: set[tuple[str, ...]] = set()
    kept = [False] * len(runs)
    times = runs["start_time"].reset_index(drop=True)
    for row in times.sort_values(ascending=False, kind="stable").index:
        kept[row] = cells[row] not in seen and (finished[row] or asked[row] not in seen_asked)
        seen.add(cells[row])
        seen_asked.add(asked[row])
    return runs[kept]


def cells_of(runs: pd.DataFrame, across_work: bool = False) -> list[tuple[str, ...]]:
    """Return what tells the cell of each run from other cells; see `newest_of_each`."""
    columns = []
    for name in (*_PLACE, *configuration(runs, across_work)):
        own = _texts(runs, name)
        if name in _AS_ASKED:
            own = [each or asked for each, asked in zip(own, _texts(runs, _AS_ASKED[name]), strict=True)]
        columns.append(own)
    return list(zip(*columns, strict=True))


def configuration(runs: pd.DataFrame, across_work: bool = False) -> list[str]:
    """Return the columns that make runs different configurations: of the loaded model, of the work and how it is done.

    Args:
        runs: rows of `llmtrack.runs`.
        across_work: other work, or another convention of scoring it, is no other configuration.
    """
    roles = {"configuration"} if across_work else {"configuration", "work", "convention"}
    told = [name for name in params_in(runs) if schema.role(name) in roles and name not in LOADED]
    return [*LOADED, *told, *(() if across_work else (_WORK,))]


def params_in(runs: pd.DataFrame) -> list[str]:
    """Return the params among the columns of runs that say what was asked or found, in their order."""

    def is_param(name: str) -> bool:
        if name in schema.PARAM_BY_NAME:
            return schema.role(name) != "implied"
        if name in runs.attrs.get(PARAM_COLUMNS, ()):
            return True
        # An unknown column of numbers may be anybody's metric.
        known = name in ID_COLUMNS or name in schema.METRIC_BY_NAME or name.startswith("env.")
        return not known and name not in EVIDENCE and runs[name].dtype != "float64"

    return list(filter(is_param, map(str, runs.columns)))


class Baselines:
    """The runs that others are compared with within their studies, found once for all of a table.

    Args:
        runs: rows of `llmtrack.runs`, all that may be a baseline or be compared with one.
    """

    def __init__(self, runs: pd.DataFrame) -> None:
        self._of_study: dict[str, list[pd.Series]] = {}
        for _, run in runs[ask.marked(runs, "baseline")].iterrows():
            self._of_study.setdefault(ask.text(run, "study_id"), []).append(run)

    def of(self, run: pd.Series) -> pd.Series | None:
        """Return the run that a run is compared with, or None.

        A study that asks several things has several baselines: the one of the same work is meant, and where none is,
        the study's only one.
        """
        own = self._of_study.get(ask.text(run, "study_id"), []) if ask.has(run, "study_id") else []
        same_work = (each for each in own if ask.has(run, _WORK) and ask.equal(each, run, _WORK))
        return next(same_work, own[0] if len(own) == 1 else None)


def counterpart(baselines: Sequence[Mapping[str, Any]], run: pd.Series, configured_by: Sequence[str]) -> int:
    """Return which of several runs, newest first, a run of another selection is compared with.

    It is the newest of the same work on the same machine, of the same configuration if there is one, else of the same
    variant; else the newest of the same work, else the newest.

    Args:
        baselines: the runs, as `records` of what is asked of them: of thousands of runs each is asked.
        run: the other one.
        configured_by: what `configuration` returns.
    """

    def alike(places: Sequence[int], names: Sequence[str]) -> list[int]:
        return [each for each in places if all(ask.equal(baselines[each], run, name) for name in names)]

    for names in (TOLD_APART_BY, TOLD_APART_BY[:2], TOLD_APART_BY[:1]):
        same = alike(range(len(baselines)), names)
        if same:
            return (same if len(same) == 1 else alike(same, configured_by) or same)[0]
    return 0


def records(runs: pd.DataFrame, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return some columns of each run, those that there are, as plain dicts."""
    there = [name for name in dict.fromkeys(names) if name in runs.columns]
    return [
        dict(zip(there, row, strict=True))
        for row in zip(*(runs[name].tolist() for name in there), strict=True)
    ]


def keys(runs: pd.DataFrame, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the values of some columns for each run, as text; empty where they are missing."""
    return list(zip(*(_texts(runs, name) for name in names), strict=True))


def _texts(runs: pd.DataFrame, name: str) -> list[str]:
    # Value by value: pandas' own conversion of a column costs more than a hundred of its values.
    if name not in runs.columns:
        return [""] * len(runs)
    return ["" if ask.missing(value) else str(value) for value in runs[name].tolist()]


def in_order_of_time(runs: pd.DataFrame) -> pd.DataFrame:
    """Sort runs by the beginning of their study, and within it as they were measured."""
    times = runs[["study_id", "start_time", "end_time"]].reset_index(drop=True)
    times["_began"] = times.groupby("study_id", dropna=False)["start_time"].transform("min")
    order = times.sort_values(["_began", "study_id", "start_time", "end_time"], kind="stable").index
    return runs.take(order.to_numpy()).reset_index(drop=True)
