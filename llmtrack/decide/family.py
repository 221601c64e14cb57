"""How many comparisons a verdict is one of: those of its study, whichever of them a command asks for.

Of twenty comparisons of equal things one is called a difference by chance, so that each must be the surer the more there are.
Were they counted by what is asked for, two commands could judge the same two runs in two ways.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from llmtrack.decide.noise_floor import with_floors
from llmtrack.tracked.run import Family, Run
from llmtrack.tracked.runs import Runs


def in_context(runs: Runs, among: Runs | None = None) -> Runs:
    """Return runs with what a verdict depends on besides the two; those that know it already are returned as they are.

    Args:
        runs: tracked runs.
        among: all that was measured where they were; None: nothing else.
    """
    if all(run.floors is not None and run.family is not None for run in runs):
        return runs
    return within(runs, among)


def within(runs: Runs, among: Runs | None = None) -> Runs:
    """Return runs with the noise floor where each was measured, and the size of its study; see `in_context`."""
    return with_families(with_floors(runs, among), among)


def with_families(runs: Runs, among: Runs | None = None) -> Runs:
    """Return runs with the size of the study of each."""
    measured = (runs if among is None else among).finished.where(lambda run: not run.is_same_as)
    scenarios = {(run.study_id, run.workload_id, run.scenario) for run in measured}
    of_work = Counter((study, work) for study, work, _ in scenarios)
    of_study = Counter(study for study, _, _ in scenarios)

    def family(run: Run) -> Family:
        if not run.study_id:
            return Family()
        return Family(of_work[run.study_id, run.workload_id], of_study[run.study_id])

    return Runs(replace(run, family=family(run)) for run in runs)


def comparisons(one: Run, other: Run) -> int:
    """Return how many comparisons that of two runs is one of; 1 where nothing is known of their studies.

    Within a study, each scenario is compared with one of the same work or, where other work is what is asked about, with one of
    all; between two studies, each of the larger with one of the other.
    """
    sizes = [run.family or Family() for run in (one, other)]
    same_work = one.workload_id == other.workload_id
    most = max(each.of_work if same_work else each.of_study for each in sizes)
    return max(1, most - (one.study_id == other.study_id))
