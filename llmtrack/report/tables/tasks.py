"""Split runs by task, since timed, scored and trained runs share hardly any columns."""

from __future__ import annotations

from collections.abc import Mapping

from llmtrack.report.tables.table import Table, summary_table
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

TASKS = {"generate": "timing", "perplexity": "quality", "train": "training"}
OTHER = "other runs"


def split_by_task(runs: Runs) -> dict[str, Runs]:
    """Group runs by task title, in the order of `TASKS`; unknown tasks come last."""
    found: dict[str, list[Run]] = {title: [] for title in (*TASKS.values(), OTHER)}
    for run in runs:
        found[TASKS.get(run.text("task"), OTHER)].append(run)
    return {title: Runs(own) for title, own in found.items() if own}


def tables_by_task(runs: Runs) -> Mapping[str, Table]:
    """Return a table per task title; baselines are looked up among all runs."""
    return {title: summary_table(own, among=runs) for title, own in split_by_task(runs).items()}
