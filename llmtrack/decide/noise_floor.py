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
"""Suite (or study) and environment."""

_MOST_STUDIES_READ = 8
_LEAST_MENTIONED = 0.005
_SAMPLED = [metric.name for metric in schema.METRICS if metric.sampled]


# --- context: floors and family sizes


def with_context(runs: Runs, among: Runs | None = None) -> Runs:
    """Add noise floors and family sizes to runs that lack them.

    Args:
        among: everything measured in the same suites or studies; None for only these runs.
    """
    if all(run.floors is not None and run.family is not None for run in runs):
        return runs
    return recompute_context(runs, among)


def recompute_context(runs: Runs, among: Runs | None = None) -> Runs:
    """Add noise floors and family sizes to runs, replacing known ones; see `with_context`."""
    return _with_families(with_floors(runs, among), among)


def with_related_runs(runs: Runs, tracking_uri: str | None = None) -> Runs:
    """Add all other runs of the runs' suites or studies from the store; of many suites or studies, none."""
    suites = dict.fromkeys(run.suite_id for run in runs if run.suite_id)
    studies = dict.fromkeys(run.study_id for run in runs if run.study_id and not run.suite_id)
    if not 0 < len(suites) + len(studies) <= _MOST_STUDIES_READ:
        return runs
    queries: list[dict[str, Any]] = [{"tags": {"llmtrack.suite_id": suite}} for suite in suites]
    queries += [{"study": study} for study in studies]
    related = list(runs)
    for query in queries:
        # The caller's runs may not be in a store; then they are all that is known.
        with contextlib.suppress(LlmtrackError):
            related += tracked_runs(**query, tracking_uri=tracking_uri)
    return Runs(related).first_of_each("run_id")


# --- noise floor


def with_floors(runs: Runs, among: Runs | None = None) -> Runs:
    """Add the noise floor of its place to each run, by metric.

    Args:
        among: everything measured in the same places; None for only these runs.
    """
    floors = noise_floors(runs if among is None else among)
    return Runs(replace(run, floors=floors.get(run.place, {})) for run in runs)


def noise_floors(runs: Runs) -> dict[Place, dict[str, NoiseFloor]]:
    """Return the largest difference of equal settings in each sampled metric, by suite (or study) and environment.

    Within a study, names distinguish scenarios, whatever the params say: only runs of one name are equal settings.
    """
    finished = runs.finished
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run, configuration in zip(finished, keys(finished, finished.configuration()), strict=True):
        groups.setdefault((*run.place, *configuration), []).append(run)
    floors: dict[Place, dict[str, NoiseFloor]] = {}
    for group in groups.values():
        if len(group) == 1 and not group[0].has("pooled"):
            continue
        # Including pairs of a run with itself: a pooled run of a suite holds the values of several runs.
        valid = [run for run in group if not run.is_replaced]
        for first, second in combinations_with_replacement(valid, 2):
            if first.study_id == second.study_id and first.scenario != second.scenario:
                continue
            of_place = floors.setdefault(first.place, {})
            for metric in _SAMPLED:
                floor = _floor_between(first, second, metric)
                if floor is not None and (metric not in of_place or floor.share > of_place[metric].share):
                    of_place[metric] = floor
    return floors


def noise_floor_of(metric: str, *runs: Run) -> float:
    """Return the noise floor of some runs in a metric, as a share; 0 if nothing was measured twice."""
    return max((run.floors[metric].share for run in runs if run.floors and metric in run.floors), default=0.0)


def noise_floor_lines(runs: Runs, *metrics: str) -> list[str]:
    """Describe the noise floor of runs from `with_floors` in some metrics; empty if nothing was measured twice."""
    floors: dict[Place, dict[str, NoiseFloor]] = {}
    kinds: dict[Place, str] = {}
    for run in runs:
        known = run.floors or {}
        floors[run.place] = {
            metric: known[metric] for metric in metrics if metric in known and known[metric].share >= _LEAST_MENTIONED
        }
        kinds[run.place] = "suite" if run.suite_id else "study"
    lines = []
    for place, of_place in floors.items():
        if of_place:
            where = f"this {kinds[place]}" if len(floors) == 1 else f"{kinds[place]} {place[0]}"
            differed = _floors_text(of_place, where)
            lines.append(f"Equal settings differed by {differed}: differences below that are not shown as wins.")
    return lines


def _floors_text(floors: Mapping[str, NoiseFloor], where: str) -> str:
    if len(floors) == 1:
        ((metric, floor),) = floors.items()
        (low_name, high_name), (low, high) = floor.names, floor.values
        unit = schema.metric(metric).unit
        return f"{floor.share:.0%} in {where} ({low_name} {significant(low)}, {high_name} {significant(high)} {unit})"
    return ", ".join(f"{floor.share:.0%} in {metric}" for metric, floor in floors.items()) + f" in {where}"


def _floor_between(first: Run, second: Run, metric: str) -> NoiseFloor | None:
    measured = dict.fromkeys((*_named_values(first, metric), *_named_values(second, metric)))
    if len(measured) < 2 or min(value for value, _ in measured) <= 0:
        return None
    (low, low_name), (high, high_name) = min(measured), max(measured)
    return NoiseFloor(high / low - 1, (low_name, high_name), (low, high))


def _named_values(run: Run, metric: str) -> list[tuple[float, str]]:
    """Return the measured values of a run with their names: several if a suite pooled them."""
    if run.has("pooled"):
        pooled = json.loads(str(run.params["pooled"]))
        return [(values[metric], name) for name, values in pooled.items() if metric in values]
    value = run.number(metric)
    return [] if value is None else [(value, f"{run.text('experiment')}/{run.name}")]


# --- number of comparisons


def family_size(baseline: Run, candidate: Run) -> int:
    """Return the number of comparisons that the one of two runs belongs to; 1 if their studies are unknown.

    Within a study, each scenario is compared with one of the same work, or with one of all scenarios if different work
    is the question; between two studies, each scenario of the larger with one of the other. What a search measures afresh
    is chosen before those samples are taken: such a pair is one of the search's proofs, however many candidates it tried.
    """
    families = [run.family or Family() for run in (baseline, candidate)]
    same_study = baseline.study_id == candidate.study_id
    if same_study and all(family.proofs for family in families):
        return max(family.proofs for family in families)
    same_work = baseline.workload_id == candidate.workload_id
    return max(1, max(family.of_work if same_work else family.of_study for family in families) - same_study)


def _with_families(runs: Runs, among: Runs | None) -> Runs:
    """Add the size of its study to each run."""
    measured = (runs if among is None else among).finished.where(lambda run: not run.is_same_as)
    scenarios = {(run.study_id, run.workload_id, run.scenario) for run in measured}
    of_work = Counter((study, work) for study, work, _ in scenarios)
    of_study = Counter(study for study, _, _ in scenarios)

    def family(run: Run) -> Family:
        if not run.study_id:
            return Family()
        proofs = int(run.number("race_proofs") or 0)
        return Family(of_work[run.study_id, run.workload_id], of_study[run.study_id], proofs)

    return Runs(replace(run, family=family(run)) for run in runs)
