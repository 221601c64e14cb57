"""Collections of tracked runs: equal cells, the newest run of each, and baselines.

A cell is a scenario of an experiment on one machine in one configuration: a loaded model, doing one work in one way.
The roles of the params in `metrics/` define what makes a configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from typing import Any, SupportsIndex, overload

from llmtrack import metrics as schema
from llmtrack.host.formatting import plural
from llmtrack.tracked.run import LOADED, STATES, VARIANT, Run

Key = tuple[str, ...]

_PLACE = ("experiment", "scenario", "environment_id")
# Values known only once a model is loaded, and the requested values that stand in for them in failed runs.
_AS_REQUESTED = {"model_id": "model", "device": "device_requested", "dtype": "dtype_requested"}
_NOT_SET = frozenset(("found", "implied"))
"""Roles of params that are no settings."""
_EVER = datetime.max.replace(tzinfo=timezone.utc)
_NEVER = datetime.min.replace(tzinfo=timezone.utc)


class Runs(tuple[Run, ...]):
    """An ordered collection of runs."""

    __slots__ = ()

    @overload
    def __getitem__(self, at: SupportsIndex) -> Run: ...

    @overload
    def __getitem__(self, at: slice) -> Runs: ...

    def __getitem__(self, at: SupportsIndex | slice) -> Run | Runs:
        """Return a run, or a slice as `Runs`."""
        return Runs(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def where(self, holds: Callable[[Run], object]) -> Runs:
        """Return the runs that satisfy a predicate."""
        return Runs(filter(holds, self))

    @property
    def finished(self) -> Runs:
        """The finished runs."""
        return self.where(lambda run: run.is_finished)

    @property
    def baseline(self) -> Run | None:
        """The first baseline, or None."""
        return next((run for run in self if run.baseline), None)

    @property
    def scenarios(self) -> list[str]:
        """Scenario names."""
        return [run.scenario for run in self]

    def measured(self, *names: str) -> Runs:
        """Return the finished runs with finite values of all names."""
        return self.where(lambda run: run.is_finished and all(map(run.has_number, names)))

    def by(self, name: str, highest_first: bool = False) -> Runs:
        """Sort by a value; runs without it come last."""
        have = sorted(self.where(lambda run: run.has(name)), key=lambda run: run.get(name), reverse=highest_first)
        return Runs((*have, *self.where(lambda run: not run.has(name))))

    def values(self, metric: str) -> list[float]:
        """Return a metric of each run; NaN if missing."""
        return [run.metrics[metric] for run in self]

    def first_of_each(self, *names: str) -> Runs:
        """Return the first run of each combination of values."""
        first: dict[Key, Run] = {}
        for run, key in zip(self, keys(self, names), strict=True):
            first.setdefault(key, run)
        return Runs(first.values())

    @property
    def params(self) -> list[str]:
        """Params of any run by which scenarios may differ: settings, not findings; known ones first, in order."""
        names = {name for run in self for name in run.params}
        known = [name for name in schema.PARAM_BY_NAME if name in names and schema.role(name) not in _NOT_SET]
        return known + sorted(names - set(schema.PARAM_BY_NAME))

    def configuration(self, across_work: bool = False) -> list[str]:
        """Return the values that distinguish configurations: of the loaded model, the work, and how it is done.

        Args:
            across_work: ignore differences in the work and the scoring convention.
        """
        roles = {"configuration"} if across_work else {"configuration", "work", "convention"}
        settings = [name for name in self.params if schema.role(name) in roles and name not in LOADED]
        return [*LOADED, *settings, *(() if across_work else ("workload_id",))]

    def cells(self, across_work: bool = False) -> list[Key]:
        """Return the cell of each run; see `newest_of_each`."""
        names = (*_PLACE, *self.configuration(across_work))
        return [tuple(_as_known(run, name) for name in names) for run in self]

    def newest_of_each(self, across_work: bool = False) -> Runs:
        """Keep the newest run of each cell, preserving order.

        An unfinished run has an incomplete configuration: any newer run with the same request replaces it, and it
        replaces no finished one.

        Args:
            across_work: for a scenario remeasured on different work, keep only the newest work.
        """
        place = [*_PLACE, *(_AS_REQUESTED.get(name, name) for name in VARIANT)]
        requests = keys(self, place if across_work else [*place, "scenario_id"])
        cells = self.cells(across_work)
        seen: set[Key] = set()
        seen_requests: set[Key] = set()
        newest: set[int] = set()
        for row in sorted(range(len(self)), key=lambda row: self[row].start_time or _NEVER, reverse=True):
            if cells[row] not in seen and (self[row].is_finished or requests[row] not in seen_requests):
                newest.add(row)
            seen.add(cells[row])
            seen_requests.add(requests[row])
        return Runs(run for row, run in enumerate(self) if row in newest)

    def in_order_of_time(self) -> Runs:
        """Sort by the start of the study, then in its order."""
        start: dict[str, datetime] = {}
        for run in self:
            start[run.study_id] = min(start.get(run.study_id, _EVER), run.start_time or _EVER)

        def key(run: Run) -> tuple[Any, ...]:
            # Runs without a study or time come last.
            return start[run.study_id], not run.study_id, run.study_id, *_place_in_study(run)

        return Runs(sorted(self, key=key))

    def in_order_of_study(self) -> Runs:
        """Sort by the place of the scenario in its study; runs of older versions, which have none, as measured."""
        return Runs(sorted(self, key=_place_in_study))

    def unfinished(self, experiments: bool = False) -> list[str]:
        """Describe the unfinished runs, one line per state, on request with the experiment of each."""
        names_of: dict[str, list[str]] = {}
        for run in self.where(lambda run: not run.is_finished):
            name = f"{run.name} ({run.text('experiment')})" if experiments else run.name
            names_of.setdefault(run.status, []).append(name)
        lines = []
        for status, names in names_of.items():
            singular, plural_words = STATES.get(status, (f"is {status}", f"are {status}"))
            words = singular if len(names) == 1 else plural_words
            lines.append(f"{len(names)} of {plural(len(self), 'scenario')} {words}: {', '.join(names)}.")
        return lines


class Baselines:
    """Baselines of studies, looked up once for a whole table."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self._of_study: dict[str, list[Run]] = {}
        for run in runs:
            if run.baseline and run.study_id:
                self._of_study.setdefault(run.study_id, []).append(run)

    def of(self, run: Run) -> Run | None:
        """Return the baseline of a run, or None.

        A study with several questions has several baselines: the one of the same work counts, else the study's only
        one.
        """
        baselines = self._of_study.get(run.study_id, [])
        same_work = (base for base in baselines if run.workload_id and base.workload_id == run.workload_id)
        return next(same_work, baselines[0] if len(baselines) == 1 else None)


def keys(runs: Iterable[Run], names: Sequence[str]) -> list[Key]:
    """Return values of each run as text; empty if missing."""
    return [tuple(_plain(run, name) for name in names) for run in runs]


def _place_in_study(run: Run) -> tuple[float, datetime, datetime]:
    """Return the sort key for the order of a study; unknown places and times come last."""
    position = math.inf if run.position is None else run.position
    return position, run.start_time or _EVER, run.end_time or _EVER


def _plain(run: Run, name: str) -> str:
    value = run.get(name)
    return "" if value is None else str(value)


def _as_known(run: Run, name: str) -> str:
    return _plain(run, name) or (_plain(run, _AS_REQUESTED[name]) if name in _AS_REQUESTED else "")
