"""Split runs by what was done to them: timed, scored or trained runs have no column in common that is worth reading."""

from __future__ import annotations

from collections.abc import Mapping

from llmtrack.report.table import Table, summary_table
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

TASKS = {"generate": "timing", "perplexity": "quality", "train": "training"}
OTHER = "other runs"


def split_by_task(runs: Runs) -> dict[str, Runs]:
    """Return the runs of each task under its title, in the order of `TASKS`; those of no known task come last."""
    found: dict[str, list[Run]] = {title: [] for title in (*TASKS.values(), OTHER)}
    for run in runs:
        found[TASKS.get(run.text("task"), OTHER)].append(run)
    return {title: Runs(own) for title, own in found.items() if own}


def tables_by_task(runs: Runs) -> Mapping[str, Table]:
    """Return a table for each task, under its title; baselines are looked for among all runs."""
    return {title: summary_table(own, among=runs) for title, own in split_by_task(runs).items()}
