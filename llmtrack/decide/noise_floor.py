"""The noise floor: how far equal settings differ that were measured more than once in a suite, or in a study.

Repeats tell how much a call varies in one process; this tells how much the same settings vary from one process, and one
minute, to the next. What differs by less is no difference here and now, however narrow the intervals are.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

from llmtrack import metrics as schema
from llmtrack.errors import LlmtrackError
from llmtrack.tracked.run import Floor, Run
from llmtrack.tracked.runs import Runs, keys
from llmtrack.tracking.query import tracked_runs

Place = tuple[str, str]

_MOST_READ = 8


def measured_there(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Return runs together with all others of the suites, or studies, that they are of, read back from the store.

    Of many at once nothing more is read than is there.
    """
    suites = dict.fromkeys(run.suite_id for run in runs if run.suite_id)
    studies = dict.fromkeys(run.study_id for run in runs if run.study_id and not run.suite_id)
    if not 0 < len(suites) + len(studies) <= _MOST_READ:
        return runs
    asked: list[dict[str, Any]] = [{"tags": {"llmtrack.suite_id": suite}} for suite in suites]
    asked += [{"study": study} for study in studies]
    found = list(runs)
    for each in asked:
        # Runs that a caller brings may be of no store: then they are all that is known.
        with contextlib.suppress(LlmtrackError):
            found += tracked_runs(**each, tracking_uri=tracking_uri)
    return Runs(found).first_of_each("run_id")


def with_floors(runs: Runs, among: Runs | None = None) -> Runs:
    """Return runs with what is known of the noise floor where each was measured, by metric.

    Args:
        runs: tracked runs.
        among: all that was measured where they were; None: nothing else.
    """
    known = floors(runs if among is None else among)
    return Runs(replace(run, floors=known.get(run.place, {})) for run in runs)


def floors(runs: Runs) -> dict[Place, dict[str, Floor]]:
    """Return the largest difference of equal settings in each sampled metric, by suite (or study) and environment.

    Within a study names tell scenarios apart, whatever params say: there, only what has one name is equal.
    """
    finished = runs.finished
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run, key in zip(finished, keys(finished, finished.configuration()), strict=True):
        groups.setdefault((*run.place, *key), []).append(run)
    found: dict[Place, dict[str, Floor]] = {}
    for alike in groups.values():
        if len(alike) == 1 and not alike[0].has("pooled"):
            continue
        # With itself, too: a run in which a suite pooled several tells what each of them measured.
        counted = [run for run in alike if not run.is_replaced]
        for one, other in combinations_with_replacement(counted, 2):
            if one.study_id == other.study_id and one.scenario != other.scenario:
                continue
            there = found.setdefault(one.place, {})
            for name in _SAMPLED:
                floor = _between(one, other, name)
                if floor is not None and (name not in there or floor.share > there[name].share):
                    there[name] = floor
    return found


_SAMPLED = [each.name for each in schema.METRICS if each.sampled]


def floor_of(metric: str, *of: Run) -> float:
    """Return the share that a difference of some runs in a metric must exceed; 0 where nothing was measured twice."""
    known = (run.floors or {} for run in of)
    return max((each[metric].share for each in known if metric in each), default=0.0)


def is_within(ratio: float, floor: float) -> bool:
    """Return whether two that differ by a ratio differ by no more than equal settings do."""
    return ratio > 0 and abs(math.log(ratio)) <= math.log1p(floor)


def floor_in_words(floor: float) -> str:
    """Say that a difference is none."""
    return f"no more than equal settings differed here, {floor:.0%}"


def say_floor(runs: Runs, *metrics: str) -> list[str]:
    """Say how far equal settings differed where these runs were measured; nothing where none were measured twice.

    Args:
        runs: those of `with_floors`, maybe a part of them.
        metrics: those that are spoken of.
    """
    told: dict[Place, dict[str, Floor]] = {}
    kinds: dict[Place, str] = {}
    for run in runs:
        known = run.floors or {}
        told[run.place] = {name: known[name] for name in metrics if name in known and known[name].share >= _LEAST}
        kinds[run.place] = "suite" if run.suite_id else "study"
    lines = []
    for place, found in told.items():
        if found:
            where = f"this {kinds[place]}" if len(told) == 1 else f"{kinds[place]} {place[0]}"
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


def _between(one: Run, other: Run, metric: str) -> Floor | None:
    found = dict.fromkeys((*_measured(one, metric), *_measured(other, metric)))
    if len(found) < 2 or min(value for value, _ in found) <= 0:
        return None
    (low, first), (high, second) = min(found), max(found)
    return Floor(high / low - 1, (first, second), (low, high))


def _measured(run: Run, metric: str) -> list[tuple[float, str]]:
    """Return what was measured of a run, and what that is called: several values where a suite pooled them."""
    if run.has("pooled"):
        each = json.loads(str(run.params["pooled"])).items()
        return [(values[metric], name) for name, values in each if metric in values]
    value = run.number(metric)
    return [] if value is None else [(value, f"{run.text('experiment')}/{run.name}")]
