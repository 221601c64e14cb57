"""Prepare the views of MLflow's runs page: a study's scenarios with the relevant columns and charts."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from llmtrack import metrics as schema
from llmtrack.report.tables.table import Table
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.filters import quoted

# Maximum metrics and params each in MLflow's table and parallel coordinates: it puts metrics first, so that more of
# them would push the params out of sight.
MOST_OF_EACH = 4
_MOST_RUNS = 50
_SECTION = "What was asked"
_SPEEDS = ("tokens_per_sec", "decode_tokens_per_sec")


def table_view(table: Table, runs: Runs, tag: str, value: str) -> dict[str, Any]:
    """Build the state of MLflow's runs table that matches one of our tables.

    Args:
        table: its columns and their importance.
        runs: its rows.
        tag: selects the scenarios: `llmtrack.study_id` or `llmtrack.suite_id`.
    """
    metrics, params = _columns(table, runs)
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


def chart_view(table: Table, runs: Runs, tag: str, value: str) -> dict[str, Any]:
    """Build `table_view` with charts: bars of the leading metric, speed against quality, parallel coordinates.

    One view serves both pages; the link decides which opens. Arguments as in `table_view`.
    """
    metrics, params = _columns(table, runs)
    section = _id("section", value)
    charts: list[Mapping[str, Any]] = [{"type": "BAR", "metricKey": key} for key in metrics[:1]]
    for key in ("perplexity", "peak_memory_mib"):
        if key in metrics[1:] and _on_several_runs(runs, metrics[0], key):
            axes = ({"key": axis, "type": "METRIC"} for axis in (metrics[0], key))
            charts.append({"type": "SCATTER", **dict(zip(("xaxis", "yaxis"), axes, strict=True))})
            break
    metric_axes, param_axes = _axes(runs, metrics, params)
    if metric_axes or param_axes:
        charts.append({"type": "PARALLEL", "selectedParams": param_axes, "selectedMetrics": metric_axes})
    common = {
        "metricSectionId": section,
        "runsCountToCompare": _MOST_RUNS,
        "deleted": False,
        "isGenerated": False,
    }
    return {
        **table_view(table, runs, tag, value),
        "isAccordionReordered": True,
        "compareRunSections": [
            {"uuid": section, "name": _SECTION, "display": True, "isReordered": True, "isGenerated": False}
        ],
        "compareRunCharts": [
            {"uuid": _id(str(number), value), **chart, **common} for number, chart in enumerate(charts)
        ],
    }


def as_text(view: Mapping[str, Any]) -> str:
    """Encode a view in MLflow's storage format: JSON."""
    return json.dumps(view, ensure_ascii=False, separators=(",", ":"))


def _columns(table: Table, runs: Runs) -> tuple[Sequence[str], Sequence[str]]:
    """Return the most important metrics and params of a table: for a timed study, speed first."""
    metrics = _most_important(table.keys, schema.METRIC_BY_NAME)
    tuned_for = {run.text("tuned_for") for run in runs} - {""}
    leads = (*(tuned_for if len(tuned_for) == 1 else ()), *_SPEEDS)
    if lead := next((key for key in leads if key in table.keys and _on_several_runs(runs, key)), None):
        metrics = [lead, *(key for key in metrics if key != lead)][:MOST_OF_EACH]
    chosen = _most_important([key for key in table.keys if key != "scenario"], schema.PARAM_BY_NAME)
    return metrics, sorted(chosen, key=table.keys.index)


def _axes(runs: Runs, metrics: Sequence[str], params: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the axes of parallel coordinates: MLflow only draws runs that have all, and nothing if one is constant."""
    drawn = runs.where(lambda run: run.has_number(metrics[0])) if metrics else Runs()
    metrics = [key for key in metrics if all(run.has_number(key) for run in drawn)]
    varying = [[key for key in keys if len({run.get(key) for run in drawn}) > 1] for keys in (metrics, params)]
    return (varying[0], varying[1]) if len(drawn) > 1 and sum(map(len, varying)) > 1 else ((), ())


def _most_important(keys: Sequence[str], entries: Mapping[str, Any]) -> list[str]:
    keep = {key: entries[key].shown.priority if entries[key].shown else 0 for key in keys if key in entries}
    return sorted(keep, key=lambda key: -keep[key])[:MOST_OF_EACH]


def _on_several_runs(runs: Runs, *keys: str) -> bool:
    return sum(all(map(run.has_number, keys)) for run in runs) > 1


def _id(name: str, value: str) -> str:
    """Return a deterministic id."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{value}"))
