"""Split runs by what was done to them: timed, scored or trained runs have no column in common that is worth reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from llmtrack.report.table import Table, summary_table
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

TASKS = {"generate": "timing", "perplexity": "quality", "train": "training"}
OTHER = "other runs"


def split_by_task(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the runs of each task under its title, in the order of `TASKS`; those of no known task come last."""
    named = [TASKS.get(ask.text(run, "task"), OTHER) for run in ask.rows(runs, "task")]
    titles = [title for title in (*TASKS.values(), OTHER) if title in named]
    return {title: runs[[each == title for each in named]].reset_index(drop=True) for title in titles}


def tables_by_task(runs: pd.DataFrame) -> Mapping[str, Table]:
    """Return a table for each task, under its title; baselines are looked for among all runs."""
    return {title: summary_table(own, among=runs) for title, own in split_by_task(runs).items()}
