"""The noise floor: the spread of equal settings measured several times in a suite or study.

Repeats show the variation of a call within one process; the floor shows the variation between processes, minutes apart.
A smaller difference is not significant, however narrow its interval.

The number of comparisons of a study is known here, too: of twenty comparisons of equal things one appears different by
chance, so p-values are corrected for it. It must not depend on the subset that a command shows.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations_with_replacement
from typing import Any

from llmtrack import metrics as schema
from llmtrack.errors import LlmtrackError
from llmtrack.host.formatting import significant
from llmtrack.tracked.run import Family, NoiseFloor, Run
from llmtrack.tracked.runs import Runs, keys
from llmtrack.tracking.read.query import tracked_runs

Place = tuple[str, str]

_MOST_READ = 8


def with_related_runs(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Return runs with all other runs of their suites or studies, read from the store.

    For many places, only the given runs are used.
    """
    suites = dict.fromkeys(run.suite_id for run in runs if run.suite_id)
    studies = dict.fromkeys(run.study_id for run in runs if run.study_id and not run.suite_id)
    if not 0 < len(suites) + len(studies) <= _MOST_READ:
        return runs
    asked: list[dict[str, Any]] = [{"tags": {"llmtrack.suite_id": suite}} for suite in suites]
    asked += [{"study": study} for study in studies]
    found = list(runs)
    for each in asked:
        # The caller's runs may not be in a store; then they are all that is known.
        with contextlib.suppress(LlmtrackError):
            found += tracked_runs(**each, tracking_uri=tracking_uri)
    return Runs(found).first_of_each("run_id")


def with_floors(runs: Runs, among: Runs | None = None) -> Runs:
    """Add the noise floor of its place to each run, by metric.

    Args:
        among: everything measured in the same places; None for only these runs.
    """
    known = noise_floors(runs if among is None else among)
    return Runs(replace(run, floors=known.get(run.place, {})) for run in runs)


def noise_floors(runs: Runs) -> dict[Place, dict[str, NoiseFloor]]:
    """Return the largest difference of equal settings in each sampled metric, by suite (or study) and environment.

    Within a study, names distinguish scenarios, whatever the params say: only runs of one name are equal settings.
    """
    finished = runs.finished
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run, key in zip(finished, keys(finished, finished.configuration()), strict=True):
        groups.setdefault((*run.place, *key), []).append(run)
    found: dict[Place, dict[str, NoiseFloor]] = {}
    for alike in groups.values():
        if len(alike) == 1 and not alike[0].has("pooled"):
            continue
        # Including itself: a pooled run of a suite holds the values of several runs.
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


def noise_floor_of(metric: str, *of: Run) -> float:
    """Return the noise floor of some runs in a metric, as a share; 0 if nothing was measured twice."""
    known = (run.floors or {} for run in of)
    return max((each[metric].share for each in known if metric in each), default=0.0)


def noise_floor_lines(runs: Runs, *metrics: str) -> list[str]:
    """Describe the noise floor of these runs; empty if nothing was measured twice.

    Args:
        runs: from `with_floors`, or a part of them.
        metrics: metrics to mention.
    """
    noise_floors: dict[Place, dict[str, NoiseFloor]] = {}
    kinds: dict[Place, str] = {}
    for run in runs:
        known = run.floors or {}
        noise_floors[run.place] = {
            name: known[name] for name in metrics if name in known and known[name].share >= _LEAST
        }
        kinds[run.place] = "suite" if run.suite_id else "study"
    lines = []
    for place, found in noise_floors.items():
        if found:
            where = f"this {kinds[place]}" if len(noise_floors) == 1 else f"{kinds[place]} {place[0]}"
            lines.append(f"Equal settings differed by {_differed(found, where)}: {_SO}.")
    return lines


_SO = "differences below that are not shown as wins"
_LEAST = 0.005


def _differed(found: Mapping[str, NoiseFloor], where: str) -> str:
    if len(found) == 1:
        ((name, floor),) = found.items()
        (one, other), (low, high) = floor.names, floor.values
        unit = schema.metric(name).unit
        return f"{floor.share:.0%} in {where} ({one} {significant(low)}, {other} {significant(high)} {unit})"
    return ", ".join(f"{floor.share:.0%} in {name}" for name, floor in found.items()) + f" in {where}"


def _between(one: Run, other: Run, metric: str) -> NoiseFloor | None:
    found = dict.fromkeys((*_measured(one, metric), *_measured(other, metric)))
    if len(found) < 2 or min(value for value, _ in found) <= 0:
        return None
    (low, first), (high, second) = min(found), max(found)
    return NoiseFloor(high / low - 1, (first, second), (low, high))


def _measured(run: Run, metric: str) -> list[tuple[float, str]]:
    """Return the measured values of a run with their names: several if a suite pooled them."""
    if run.has("pooled"):
        each = json.loads(str(run.params["pooled"])).items()
        return [(values[metric], name) for name, values in each if metric in values]
    value = run.number(metric)
    return [] if value is None else [(value, f"{run.text('experiment')}/{run.name}")]


def with_context(runs: Runs, among: Runs | None = None) -> Runs:
    """Add noise floors and family sizes to runs that lack them.

    Args:
        among: everything measured in the same suites or studies; None for only these runs.
    """
    if all(run.floors is not None and run.family is not None for run in runs):
        return runs
    return within(runs, among)


def within(runs: Runs, among: Runs | None = None) -> Runs:
    """Add the noise floor and the size of the study to each run; see `with_context`."""
    return with_families(with_floors(runs, among), among)


def with_families(runs: Runs, among: Runs | None = None) -> Runs:
    """Add the size of its study to each run."""
    measured = (runs if among is None else among).finished.where(lambda run: not run.is_same_as)
    scenarios = {(run.study_id, run.workload_id, run.scenario) for run in measured}
    of_work = Counter((study, work) for study, work, _ in scenarios)
    of_study = Counter(study for study, _, _ in scenarios)

    def family(run: Run) -> Family:
        if not run.study_id:
            return Family()
        return Family(
            of_work[run.study_id, run.workload_id], of_study[run.study_id], int(run.number("race_proofs") or 0)
        )

    return Runs(replace(run, family=family(run)) for run in runs)


def family_size(one: Run, other: Run) -> int:
    """Return the family size of the comparison of two runs; 1 if their studies are unknown.

    Within a study, each scenario is compared with one of the same work, or with one of all scenarios if different work
    is the question; between two studies, each scenario of the larger with one of the other. What a search measures afresh
    is chosen before those samples are taken: such a pair is one of the search's proofs, however many candidates it tried.
    """
    sizes = [run.family or Family() for run in (one, other)]
    if one.study_id == other.study_id and all(each.proofs for each in sizes):
        return max(each.proofs for each in sizes)
    same_work = one.workload_id == other.workload_id
    most = max(each.of_work if same_work else each.of_study for each in sizes)
    return max(1, most - (one.study_id == other.study_id))
