"""Lay out results of single items as MLflow's evaluation table, which its list of runs compares side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from llmtrack.spec.outcome import Generation
from llmtrack.spec.scores import Item

TABLE = "eval_results_table.json"
GENERATIONS = "generations_table.json"
TAG = "mlflow.loggedArtifacts"
"""Tag by which MLflow finds the tables of a run."""


def tables_of(items: Sequence[Item], generations: Sequence[Generation] = ()) -> tuple[dict[str, str], dict[str, str]]:
    """Return the artifacts and the tag of a run with results of items, or with generations; empty without.

    The first column groups, the second is compared, unless a person chooses others.
    """
    names = list(dict.fromkeys(name for item in items for name in item.values))
    found = {
        TABLE: _table(
            ["document", *names], ([item.name, *(_finite(item.values.get(name)) for name in names)] for item in items)
        ),
        GENERATIONS: _table(
            ["prompt", "output", "seconds", "first_token_s", "new_tokens"],
            ([each.prompt, each.text, each.seconds, each.first_token_s, each.new_tokens] for each in generations),
        ),
    }
    tables = {path: text for path, text in found.items() if text}
    listed = [{"path": path, "type": "table"} for path in tables]
    return tables, {TAG: json.dumps(listed)} if listed else {}


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as MLflow stores it; empty without rows."""
    data = list(rows)
    return json.dumps({"columns": columns, "data": data}, ensure_ascii=False) if data else ""


def _finite(value: float | None) -> float | str | None:
    """Return a number that JSON has, or its name."""
    return value if value is None or math.isfinite(value) else str(value)
