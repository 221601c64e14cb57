"""The noise floor: how far equal settings differ that were measured more than once in a suite, or in a study.

Repeats tell how much a call varies in one process; this tells how much the same settings vary from one process, and one
minute, to the next. What differs by less is no difference here and now, however narrow the intervals are.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.errors import LlmtrackError
from llmtrack.tracking import ask, query
from llmtrack.tracking.cells import FLOORS, configuration, keys
from llmtrack.tracking.frame import extended

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Floor:
    """How far two runs of equal settings differ in a metric.

    Attributes:
        share: by which the larger value exceeds the smaller (0.16: 16 %).
        names: what both are called, each with its experiment.
        values: of both.
    """

    share: float
    names: tuple[str, str]
    values: tuple[float, float]


def with_floors(runs: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return runs with what is known of the noise floor where each was measured, by metric, in the column `FLOORS`.

    Args:
        runs: rows of `llmtrack.runs`.
        among: all that was measured where they were; None: nothing else.
    """
    return extended(runs, **{FLOORS: known_floors(runs, among)})


def known_floors(runs: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.Series:
    """Return what `with_floors` adds to runs."""
    import pandas as pd

    known = floors(runs if among is None else among)
    return pd.Series([known.get(place, {}) for place in _places(runs)], index=runs.index, dtype="object")


def measured_there(runs: pd.DataFrame, tracking_uri: str | None = None) -> pd.DataFrame:
    """Return runs together with all others of the suites, or studies, that they are of, read back from the store.

    Of many at once nothing more is read than is there.
    """
    import pandas as pd

    places = dict.fromkeys(keys(runs, _PLACE[:2]))
    suites = dict.fromkeys(suite for suite, _ in places if suite)
    studies = dict.fromkeys(study for suite, study in places if study and not suite)
    if not 0 < len(suites) + len(studies) <= _MOST_READ:
        return runs
    asked: list[dict[str, Any]] = [{"tags": {"llmtrack.suite_id": suite}} for suite in suites]
    asked += [{"study": study} for study in studies]
    found = []
    for each in asked:
        # Rows that a caller brings may be of no store: then they are all that is known.
        with contextlib.suppress(LlmtrackError):
            found.append(query.runs(**each, tracking_uri=tracking_uri))
    return pd.concat([runs, *found], ignore_index=True).drop_duplicates("run_id", ignore_index=True)


_MOST_READ = 8


def floors(runs: pd.DataFrame) -> dict[tuple[str, ...], dict[str, Floor]]:
    """Return the largest difference of equal settings in each sampled metric, by suite (or study) and environment.

    Within a study names tell scenarios apart, whatever params say: there, only what has one name is equal.

    Args:
        runs: rows of `llmtrack.runs`.
    """
    finished = ask.finished(runs).reset_index(drop=True)
    groups: dict[tuple[str, ...], list[int]] = {}
    places, pooled = _places(finished), ask.has_value(finished, "pooled").tolist()
    for row, key in enumerate(keys(finished, configuration(finished))):
        groups.setdefault((*places[row], *key), []).append(row)
    found: dict[tuple[str, ...], dict[str, Floor]] = {}
    sampled = [each.name for each in schema.METRICS if each.sampled and each.name in finished.columns]
    for rows in groups.values():
        if len(rows) == 1 and not pooled[rows[0]]:
            continue
        # With itself, too: a run in which a suite pooled several tells what each of them measured.
        counted = [run for run in (finished.iloc[row] for row in rows) if not ask.is_replaced(run)]
        for one, other in combinations_with_replacement(counted, 2):
            if ask.equal(one, other, "study_id") and not ask.equal(one, other, "scenario"):
                continue
            there = found.setdefault(place(one), {})
            for name in sampled:
                floor = _between(one, other, name)
                if floor is not None and (name not in there or floor.share > there[name].share):
                    there[name] = floor
    return found


def floor_of(metric: str, *of: pd.Series) -> float:
    """Return the share that a difference of some runs in a metric must exceed; 0 where nothing was measured twice."""
    return max((each[metric].share for each in map(_known, of) if metric in each), default=0.0)


def is_within(ratio: float, floor: float) -> bool:
    """Return whether two that differ by a ratio differ by no more than equal settings do."""
    return ratio > 0 and abs(math.log(ratio)) <= math.log1p(floor)


def floor_in_words(floor: float) -> str:
    """Say that a difference is none."""
    return f"no more than equal settings differed here, {floor:.0%}"


def say_floor(runs: pd.DataFrame, *metrics: str) -> list[str]:
    """Say how far equal settings differed where these runs were measured; nothing where none were measured twice.

    Args:
        runs: rows of `with_floors`, maybe a part of them.
        metrics: those that are spoken of.
    """
    told: dict[tuple[str, ...], dict[str, Floor]] = {}
    places = _places(runs)
    for place, held in zip(places, runs.get(FLOORS, [None] * len(runs)), strict=True):
        known = held if isinstance(held, Mapping) else {}
        told[place] = {name: known[name] for name in metrics if name in known and known[name].share >= _LEAST}
    of_suite = dict(zip(places, (bool(suite) for (suite,) in keys(runs, ["suite_id"])), strict=True))
    lines = []
    for place, found in told.items():
        if found:
            kind = "suite" if of_suite[place] else "study"
            where = f"this {kind}" if len(told) == 1 else f"{kind} {place[0]}"
            lines.append(f"Equal settings differed by {_differed(found, where)}: {_SO}.")
    return lines


_SO = "differences below that are not shown as wins"
_LEAST = 0.005


def _differed(found: Mapping[str, Floor], where: str) -> str:
    if len(found) == 1:
        ((name, floor),) = found.items()
        (one, other), (low, high) = floor.names, floor.values
        unit = schema.metric(name).unit
        return f"{floor.share:.0%} in {where} ({one} {low:,.4g}, {other} {high:,.4g} {unit})"
    return ", ".join(f"{floor.share:.0%} in {name}" for name, floor in found.items()) + f" in {where}"


def _known(run: pd.Series) -> Mapping[str, Floor]:
    known = run.get(FLOORS)
    return known if isinstance(known, Mapping) else {}


def _between(one: pd.Series, other: pd.Series, metric: str) -> Floor | None:
    found = dict.fromkeys((*_measured(one, metric), *_measured(other, metric)))
    if len(found) < 2 or min(value for value, _ in found) <= 0:
        return None
    (low, first), (high, second) = min(found), max(found)
    return Floor(high / low - 1, (first, second), (low, high))


def _measured(run: pd.Series, metric: str) -> list[tuple[float, str]]:
    """Return what was measured of a run, and what that is called: several values where a suite pooled them."""
    if ask.has(run, "pooled"):
        each = json.loads(str(run["pooled"])).items()
        return [(values[metric], name) for name, values in each if metric in values]
    value = ask.number(run, metric)
    return [] if value is None else [(value, _name(run))]


def _name(run: pd.Series) -> str:
    return f"{ask.text(run, 'experiment')}/{ask.name(run)}"


def _places(runs: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return where each run was measured; see `place`."""
    return [(suite or study, where) for suite, study, where in keys(runs, _PLACE)]


_PLACE = ("suite_id", "study_id", "environment_id")


def place(run: pd.Series) -> tuple[str, ...]:
    """Return where a run was measured: its suite (or study) and environment, by which `floors` tells them."""
    return (ask.text(run, "suite_id") or ask.text(run, "study_id"), ask.text(run, "environment_id"))
