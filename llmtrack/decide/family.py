"""The family of comparisons that a verdict belongs to: those of its study, whatever subset a command shows.

Of twenty comparisons of equal things one appears different by chance, so p-values are corrected for their number. If
the number depended on the command, two commands could judge the same two runs differently.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from llmtrack.decide.noise_floor import with_floors
from llmtrack.tracked.run import Family, Run
from llmtrack.tracked.runs import Runs


def in_context(runs: Runs, among: Runs | None = None) -> Runs:
    """Add noise floors and family sizes to runs that lack them.

    Args:
        among: everything measured in the same suites or studies; None for only these runs.
    """
    if all(run.floors is not None and run.family is not None for run in runs):
        return runs
    return within(runs, among)


def within(runs: Runs, among: Runs | None = None) -> Runs:
    """Add the noise floor and the size of the study to each run; see `in_context`."""
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


def comparisons(one: Run, other: Run) -> int:
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
