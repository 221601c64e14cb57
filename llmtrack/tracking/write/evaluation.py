"""Lay out results of single items as MLflow's evaluation table, which its list of runs compares side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from llmtrack.spec.scores import Item

TABLE = "eval_results_table.json"
TAG = "mlflow.loggedArtifacts"
"""Tag by which MLflow finds the tables of a run."""


def tables_of(items: Sequence[Item]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the artifact and the tag of a run with results of items; empty without.

    The first column groups, the second is compared, unless a person chooses others.
    """
    if not items:
        return {}, {}
    names = list(dict.fromkeys(name for item in items for name in item.values))
    rows = [[item.name, *(_finite(item.values.get(name)) for name in names)] for item in items]
    table = {"columns": ["document", *names], "data": rows}
    return {TABLE: json.dumps(table, ensure_ascii=False)}, {TAG: json.dumps([{"path": TABLE, "type": "table"}])}


def _finite(value: float | None) -> float | str | None:
    """Return a number that JSON has, or its name."""
    return value if value is None or math.isfinite(value) else str(value)
