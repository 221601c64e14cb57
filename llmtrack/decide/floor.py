"""The noise floor: how far equal settings differ that were measured more than once in a suite, or in a study.

Repeats tell how much a call varies in one process; this tells how much the same settings vary from one process, and one
minute, to the next. What differs by less is no difference here and now, however narrow the intervals are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.tracking import ask
from llmtrack.tracking.cells import FLOORS, configuration, keys

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

    def __str__(self) -> str:
        (one, other), (low, high) = self.names, self.values
        return f"equal settings differed by {self.share:.0%} in this {{place}} ({one} {low:,.4g}, {other} {high:,.4g})"


Floors = Mapping[str, Floor]


def with_floors(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs with what is known of the noise floor where each was measured, by metric, in the column `FLOORS`."""
    import pandas as pd

    known = floors(runs)
    held = pd.Series([known.get(place, {}) for place in _places(runs)], index=runs.index, dtype="object")
    return runs.assign(**{FLOORS: held})


def floors(runs: pd.DataFrame) -> dict[tuple[str, ...], dict[str, Floor]]:
    """Return the largest difference of equal settings in each sampled metric, by suite (or study) and environment.

    Within a study names tell scenarios apart, whatever params say: there, only what has one name is equal.

    Args:
        runs: rows of `llmtrack.runs`.
    """
    finished = ask.finished(runs).reset_index(drop=True)
    groups: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(keys(finished, configuration(finished))):
        groups.setdefault((*_place(finished.iloc[row]), *key), []).append(row)
    found: dict[tuple[str, ...], dict[str, Floor]] = {}
    sampled = [each.name for each in schema.METRICS if each.sampled and each.name in finished.columns]
    for rows in groups.values():
        for one, other in combinations([finished.iloc[row] for row in rows], 2):
            if ask.equal(one, other, "study_id") and not ask.equal(one, other, "scenario"):
                continue
            place = found.setdefault(_place(one), {})
            for name in sampled:
                floor = _between(one, other, name)
                if floor is not None and (name not in place or floor.share > place[name].share):
                    place[name] = floor
    return found


def floor_of(metric: str, *of: pd.Series) -> float:
    """Return the share that a difference of some runs in a metric must exceed; 0 where nothing was measured twice."""
    known = [run.get(FLOORS) for run in of]
    return max(
        (each[metric].share for each in known if isinstance(each, Mapping) and metric in each), default=0.0
    )


def say_floor(runs: pd.DataFrame, metric: str) -> list[str]:
    """Say how far equal settings differed in a metric where these runs were measured; nothing where none were measured twice.

    Args:
        runs: rows of `with_floors`, maybe a part of them.
        metric: its name.
    """
    lines = []
    for _, run in runs.iterrows() if FLOORS in runs.columns else ():
        floor = run[FLOORS].get(metric)
        if floor is not None and floor.share >= _LEAST:
            said = str(floor).format(place="suite" if ask.has(run, "suite_id") else "study")
            unit = schema.metric(metric).unit
            lines.append(
                f"{said[0].upper()}{said[1:-1]} {unit}): differences below that are not shown as wins."
            )
    return list(dict.fromkeys(lines))


_LEAST = 0.005


def _between(one: pd.Series, other: pd.Series, metric: str) -> Floor | None:
    values = [ask.number(run, metric) for run in (one, other)]
    if values[0] is None or values[1] is None or min(values[0], values[1]) <= 0:
        return None
    (low, first), (high, second) = sorted(
        ((values[0], _name(one)), (values[1], _name(other))), key=lambda each: each[0]
    )
    return Floor(high / low - 1, (first, second), (low, high))


def _name(run: pd.Series) -> str:
    return f"{ask.text(run, 'experiment')}/{ask.name(run)}"


def _places(runs: pd.DataFrame) -> list[tuple[str, ...]]:
    return [_place(run) for _, run in runs.iterrows()]


def _place(run: pd.Series) -> tuple[str, ...]:
    return (ask.text(run, "suite_id") or ask.text(run, "study_id"), ask.text(run, "environment_id"))
