"""How many comparisons a verdict is one of: those of its study, whichever of them a command asks for.

Of twenty comparisons of equal things one is called a difference by chance, so that each must be the surer the more there are.
Were they counted by what is asked for, two commands could judge the same two runs in two ways.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from llmtrack.decide.floor import with_floors
from llmtrack.tracking import ask
from llmtrack.tracking.cells import FAMILY, FLOORS, keys
from llmtrack.tracking.frame import extended

if TYPE_CHECKING:
    import pandas as pd


def in_context(runs: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return runs with what a verdict depends on besides the two: noise floors, and how many comparisons there are.

    Args:
        runs: rows of `llmtrack.runs`; those that know it already are returned as they are.
        among: all that was measured where they were; None: nothing else.
    """
    if FLOORS in runs.columns and FAMILY in runs.columns:
        return runs
    return with_families(with_floors(runs, among), among)


def with_families(runs: pd.DataFrame, among: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return runs with the size of the study of each in the column `FAMILY`: the scenarios of the same work, and all."""
    import pandas as pd

    measured = ask.finished(runs if among is None else among)
    measured = measured[~ask.where(measured, "outcome", "same_as")]
    scenarios = set(keys(measured, ("study_id", "workload_id", "scenario")))
    of_work = Counter((study, work) for study, work, _ in scenarios)
    of_study = Counter(study for study, _, _ in scenarios)
    sizes = [
        (of_work[study, work], of_study[study]) if study else (1, 1)
        for study, work in keys(runs, ("study_id", "workload_id"))
    ]
    return extended(runs, **{FAMILY: pd.Series(sizes, index=runs.index, dtype="object")})


def comparisons(one: pd.Series, other: pd.Series) -> int:
    """Return how many comparisons that of two runs is one of; 1 where nothing is known of their studies.

    Within a study, each scenario is compared with one of the same work or, where other work is what is asked about, with one of
    all; between two studies, each of the larger with one of the other.
    """
    sizes = [found if isinstance(found := run.get(FAMILY), tuple) else (1, 1) for run in (one, other)]
    same_work = ask.equal(one, other, "workload_id")
    most = max(of_work if same_work else of_study for of_work, of_study in sizes)
    return max(1, most - ask.equal(one, other, "study_id"))
