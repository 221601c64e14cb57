"""Prepare what MLflow's page of runs opens on: a study's scenarios, with the columns and charts that matter."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.report.table import Table
from llmtrack.tracking import ask
from llmtrack.tracking.filters import quoted

if TYPE_CHECKING:
    import pandas as pd

# Columns of MLflow's table, and axes of its parallel coordinates, of metrics and of params: it puts metrics first, so with
# more of them what was asked would be out of sight.
MOST_OF_EACH = 4
_MOST_RUNS = 50
_SECTION = "What was asked"


def table_view(table: Table, tag: str, value: str) -> dict[str, Any]:
    """Return the state of MLflow's table of runs that shows what a table of ours shows.

    Args:
        table: its columns and their importance.
        tag: which of the scenarios' tags chooses them: `llmtrack.study_id` or `llmtrack.suite_id`.
        value: of it.
    """
    metrics, params = _columns(table)
    order = metrics[0] if metrics else ""
    return {
        "searchFilter": f"tags.`{tag}` = {quoted(value)} and tags.`llmtrack.kind` = 'scenario'",
        "orderByKey": f"metrics.`{order}`" if order else "attributes.start_time",
        "orderByAsc": schema.metric(order).better == "lower" if order else True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": [*(f"params.`{key}`" for key in params), *(f"metrics.`{key}`" for key in metrics)],
    }


def chart_view(table: Table, runs: pd.DataFrame, tag: str, value: str) -> dict[str, Any]:
    """Return the state of MLflow's chart view: bars of the leading metric, speed against quality, parallel coordinates.

    Args:
        table: as in `table_view`.
        runs: its rows, as `llmtrack.runs` returns them.
        tag: as in `table_view`.
        value: as in `table_view`.
    """
    metrics, params = _columns(table)
    section = _id("section", value)
    charts: list[Mapping[str, Any]] = [{"type": "BAR", "metricKey": key} for key in metrics[:1]]
    across = next(
        (
            key
            for key in ("perplexity", "peak_memory_mib")
            if key in metrics[1:] and _in_all(runs, metrics[0], key)
        ),
        None,
    )
    if across is not None:
        axes = ({"key": key, "type": "METRIC"} for key in (metrics[0], across))
        charts.append({"type": "SCATTER", **dict(zip(("xaxis", "yaxis"), axes, strict=True))})
    if len(metrics) > 1 or params:
        charts.append(
            {
                "type": "PARALLEL",
                "selectedParams": list(params),
                "selectedMetrics": list(metrics),
            }
        )
    own = {
        "metricSectionId": section,
        "runsCountToCompare": _MOST_RUNS,
        "deleted": False,
        "isGenerated": False,
    }
    return {
        **table_view(table, tag, value),
        "isAccordionReordered": True,
        "compareRunSections": [
            {"uuid": section, "name": _SECTION, "display": True, "isReordered": True, "isGenerated": False}
        ],
        "compareRunCharts": [
            {"uuid": _id(str(number), value), **chart, **own} for number, chart in enumerate(charts)
        ],
    }


def as_text(view: Mapping[str, Any]) -> str:
    """Return a view as MLflow keeps it: JSON."""
    return json.dumps(view, ensure_ascii=False, separators=(",", ":"))


def _columns(table: Table) -> tuple[Sequence[str], Sequence[str]]:
    """Return the metrics and params of a table that say most, the first of each first."""
    metrics = _most_telling(table.keys, schema.METRIC_BY_NAME)
    chosen = _most_telling([key for key in table.keys if key != "scenario"], schema.PARAM_BY_NAME)
    return metrics, sorted(chosen, key=table.keys.index)


def _most_telling(keys: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    keep = {key: entries[key].shown.keep if entries[key].shown else 0 for key in keys if key in entries}
    return sorted(keep, key=lambda key: -keep[key])[:MOST_OF_EACH]


def _in_all(runs: pd.DataFrame, *keys: str) -> bool:
    return bool(all(ask.present(runs, key).sum() > 1 for key in keys))


def _id(name: str, value: str) -> str:
    """Return an id that is the same whenever the same view is made."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{value}"))
