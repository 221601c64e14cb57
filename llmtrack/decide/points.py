"""What speed, quality and memory each measured scenario has: the points that a choice is made among.

Speed and quality may have been measured in one run or in two of the same variant (the loaded model); they are joined
here. Only what is comparable stands in one picture: one workload, one environment, one perplexity convention.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.decide.comparability import CONVENTION, scored_key
from llmtrack.errors import UsageError
from llmtrack.tracking import ask
from llmtrack.tracking.cells import (
    LOADED,
    cells_of,
    configuration,
    in_order_of_time,
    keys,
    newest_of_each,
    records,
)
from llmtrack.tracking.frame import extended
from llmtrack.words import plural

if TYPE_CHECKING:
    import pandas as pd

# What all points have in common.
_SAME = ("model_id", "workload_id", "environment_id")
SPEED, QUALITY, MEMORY = "tokens_per_sec", "perplexity", "peak_memory_mib"


@dataclass(frozen=True)
class Points:
    """Scenarios to choose among.

    Attributes:
        runs: a row of `llmtrack.runs` for each timed scenario, its quality joined to it, in order of time.
        notes: what was left out, and why, in words.
        scored: the runs that have the quality by the one convention, timed or not.
        reference: the run that says of which model, workload and machine they are.
    """

    runs: pd.DataFrame
    notes: tuple[str, ...]
    scored: pd.DataFrame
    reference: pd.Series | None = None


def gather_points(runs: pd.DataFrame, speed: str = SPEED, quality: str = QUALITY) -> Points:
    """Return the timed scenarios with their quality; of runs of one configuration the newest, which is said.

    Args:
        runs: rows of `llmtrack.runs`.
        speed: the metric that tells a timed run.
        quality: the metric to join to it.

    Raises:
        UsageError: nothing was timed.
    """
    finished = in_order_of_time(ask.finished(runs[ask.where(runs, "kind", "scenario")]))
    timed = finished[ask.present(finished, speed)]
    if timed.empty:
        of = " and ".join(sorted(set(filter(None, finished.get("experiment", [])))))
        raise UsageError(
            f"no finished run{f' of {of}' if of else ''} has {speed}: choose a study that measured it, such as "
            "--study latest:precision, or measure one: mlflow run . -e precision"
        )
    notes: list[str] = []
    reference = reference_of(timed)
    timed = _like(timed, reference, ("model_id",), "of another model", notes)
    timed = _like(timed, reference, ("workload_id",), "of another workload", notes)
    timed = _like(timed, reference, ("environment_id",), "measured in another environment", notes)
    scored = finished[ask.present(finished, quality)]
    # Runs that name no model, such as of an earlier version, are of one: that of the reference.
    scored = _like(scored, reference, ("model_id",), "of another model", [])
    scored = newest_of_each(scored, across_work=True)
    scored = extended(scored, scored_key=[str(scored_key(run, quality)) for _, run in scored.iterrows()])
    if len(scored):
        standard = _scored_like(scored, reference)
        scored = _like(scored, standard, CONVENTION, f"whose {quality} is of another convention", notes)
        scored = _like(
            scored, standard, ("scored_key",), f"whose {quality} is of other tokens or another text", notes
        )
    timed = _newest(timed, speed, notes)
    return Points(_joined(timed, scored, quality, notes), tuple(notes), scored, reference)


def reference_of(timed: pd.DataFrame) -> pd.Series:
    """Return the run that says of which model, workload and machine the choice is: the others are left out.

    It is the baseline of the newest study that measured another loaded model beside it; else of one that measured anything
    beside it; else of the newest; else the newest run.

    Args:
        timed: runs in order of time, at least one.
    """
    cells = keys(timed, ("study_id", *_SAME))
    measured = Counter(cells)
    loaded = Counter(cell for cell, _ in dict.fromkeys(zip(cells, keys(timed, LOADED), strict=True)))
    base = ask.marked(timed, "baseline").tolist()
    tiers = [(base, loaded), (base, measured), ([True] * len(cells), loaded), (base, None)]
    for wanted, counted in tiers:
        rows = [
            row for row, cell in enumerate(cells) if wanted[row] and (counted is None or counted[cell] > 1)
        ]
        if rows:
            # What a study is about comes first in it.
            return timed.iloc[next(row for row in rows if cells[row][0] == cells[rows[-1]][0])]
    return timed.iloc[-1]


def _scored_like(scored: pd.DataFrame, reference: pd.Series) -> pd.Series:
    """Return the run by whose text and convention the others' quality counts: the newest that scored the reference, or any."""
    keyed = keys(scored, ("scored_key", *CONVENTION))
    shared = Counter(key for key, _ in dict.fromkeys(zip(keyed, keys(scored, LOADED), strict=True)))
    own = [
        row
        for row, (_, run) in enumerate(scored.iterrows())
        if all(ask.equal(run, reference, name) for name in LOADED)
    ]
    compared = [row for row in own if shared[keyed[row]] > 1]
    return scored.iloc[(compared or own or [len(scored) - 1])[-1]]


def _newest(timed: pd.DataFrame, speed: str, notes: list[str]) -> pd.DataFrame:
    """Keep the newest of runs that asked the same, whatever their study, experiment or scenario is called.

    The luckiest run of a configuration is no configuration of its own. Within a study, names tell scenarios apart.
    """
    # All do one work, and by which convention a text is scored is no matter of how it is timed.
    asked = dict(zip(timed["run_id"], keys(timed, configuration(timed, across_work=True)), strict=True))
    cell = dict(zip(timed["run_id"], cells_of(timed, across_work=True), strict=True))
    kept: dict[str, list[pd.Series]] = {}
    # From the newest on, so that each finds what replaces it.
    for _, run in timed.iloc[::-1].iterrows():
        run_id = str(run["run_id"])
        newer = next(
            (
                other
                for other, (first, *_) in kept.items()
                if cell[other] == cell[run_id]
                or (asked[other] == asked[run_id] and not ask.equal(first, run, "study_id"))
            ),
            run_id,
        )
        kept.setdefault(newer, []).append(run)
    for newest, *before in kept.values():
        if before:
            values = ", ".join(f"{run[speed]:,.4g}" for run in before)
            notes.append(
                f"{ask.name(newest)} was measured {len(before) + 1} times in one configuration: the newest counts "
                f"({speed} {newest[speed]:,.4g}; before: {values})"
            )
    return timed[timed["run_id"].isin(list(kept))]


def _joined(timed: pd.DataFrame, scored: pd.DataFrame, quality: str, notes: list[str]) -> pd.DataFrame:
    """Return timed runs with the quality of their own run or, for want of it, of the runs of their variant."""
    own: dict[str, float] = {}
    of_variant: dict[tuple[str, ...], list[float]] = {}
    if quality in scored.columns:
        own = dict(zip(scored["run_id"], scored[quality], strict=True))
        for variant, value in zip(keys(scored, LOADED), scored[quality], strict=True):
            of_variant.setdefault(variant, []).append(value)
    values = []
    for run_id, name, variant in zip(timed["run_id"], timed["scenario"], keys(timed, LOADED), strict=True):
        found = [own[run_id]] if run_id in own else of_variant.get(variant, [])
        # Models that differ in what no variant tells, such as the settings of a recipe.
        told_apart = found and max(found) <= min(found) * (1 + schema.metric(quality).tolerance)
        values.append(found[-1] if told_apart else math.nan)
        if found and not told_apart:
            notes.append(f"{name} has no {quality} of its own, and the runs of its variant disagree")
    return extended(timed, **{quality: values}).reset_index(drop=True)


def _like(
    runs: pd.DataFrame, standard: pd.Series, names: Sequence[str], what: str, notes: list[str]
) -> pd.DataFrame:
    """Keep the runs that agree with a run in some columns; say how many are left out."""
    kept = [all(ask.equal(run, standard, name) for name in names) for run in records(runs, names)]
    if all(kept):
        return runs
    left = plural(len(kept) - sum(kept), "run")
    notes.append(
        f"{left} {what} {'is' if left.startswith('1 ') else 'are'} left out: choose runs by --study, --experiment or --model"
    )
    return runs[kept]
