"""Artificial runs, as if they had been tracked and read back."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from llmtrack import metrics as schema
from llmtrack.report.tables.summary import summary_table
from llmtrack.report.tables.table import Table
from llmtrack.tracked.frames import lines_of
from llmtrack.tracked.run import ENV, IDENTITY, Run
from llmtrack.tracked.runs import Runs

DEFAULTS: dict[str, Any] = {
    "status": "FINISHED",
    "kind": "scenario",
    "experiment": "precision",
    "study_id": "precision-1",
    "outcome": "finished",
    "baseline": False,
    "model_id": "packaged:smollm2",
    "device": "cpu",
    "dtype": "float32",
    "backend": "torch",
    "quantization": "none",
    "use_cache": True,
    "padding_side": "left",
    "batch_size": 1,
    "prompt_tokens": 16,
    "prompt_tokens_total": 16,
    "max_new_tokens": 32,
    "start_time": "2026-11-28T10:00:00Z",
    "end_time": "2026-11-28T10:01:00Z",
}


def run(scenario: str, **values: Any) -> dict[str, Any]:
    return {**DEFAULTS, "scenario": scenario, "run_name": scenario, "run_id": f"id-{scenario}", **values}


def interval(metric: str, value: float, low: float, high: float, n: int = 5) -> dict[str, float]:
    """Return a metric with its 95 % interval."""
    spread = {"ci_low": low, "ci_high": high, "n": float(n)}
    return {metric: value, **{schema.spread_key(metric, statistic): number for statistic, number in spread.items()}}


def make_runs(*rows: dict[str, Any]) -> Runs:
    """Build runs from values by column name; unknown names are metrics."""
    return Runs(map(_make_run, rows))


def replace_values(runs: Iterable[Run], **values: Any) -> Runs:
    """Replace values of runs: one for all of them, or a list with one each."""
    return make_runs(
        *(
            values_of(run)
            | {name: value[place] if isinstance(value, list) else value for name, value in values.items()}
            for place, run in enumerate(runs)
        )
    )


def column(runs: Iterable[Run], name: str) -> list[Any]:
    """Return a value of each run."""
    return [run.get(name) for run in runs]


def values_of(run: Run) -> dict[str, Any]:
    """Return the values of a run by column name."""
    facts = {ENV + name: value for name, value in run.environment.items()}
    return {name: run.get(name) for name in IDENTITY} | run.params | run.metrics | facts


def _make_run(row: dict[str, Any]) -> Run:
    identity: dict[str, Any] = {"run_id": ""}
    params: dict[str, Any] = {}
    metrics: dict[str, float] = {}
    environment: dict[str, str] = {}
    for name, value in row.items():
        if value is None or value != value:
            continue
        if name in ("start_time", "end_time"):
            identity[name] = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
        elif name == "warnings":
            identity[name] = lines_of(value)
        elif name in IDENTITY:
            identity[name] = value
        elif name.startswith(ENV):
            environment[name.removeprefix(ENV)] = value
        elif name in schema.PARAM_BY_NAME or isinstance(value, str):
            params[name] = value
        else:
            metrics[name] = float(value)
    return Run(**identity, params=params, metrics=metrics, environment=environment)


BASE = run("float32", baseline=True, **interval("tokens_per_sec", 10.0, 9.9, 10.1))


def timed(name: str, speed: float | None, **values: Any) -> dict[str, Any]:
    return run(name, tokens_per_sec=speed, workload_id="w", environment_id="e", **values)


def scored(name: str, perplexity: float, **values: Any) -> dict[str, Any]:
    convention = {"corpus_digest": "c", "protocol": "documents", "max_length": 512, "bos_rule": "tokenizer"}
    return run(name, perplexity=perplexity, workload_id="q", **{"environment_id": "e", **convention, **values})


def repeated(
    name: str, speed: float, perplexity: float | None = None, n: int = 8, share: float = 0.01, **values: Any
) -> dict[str, Any]:
    """Return a run timed n times, whose interval reaches this share to both sides."""
    spread = interval("tokens_per_sec", speed, (1 - share) * speed, (1 + share) * speed, n)
    return timed(name, speed, quantization=name, perplexity=perplexity) | spread | values


def table_of(*rows: dict[str, Any], **settings: Any) -> Table:
    """Lay out the summary table of runs."""
    return summary_table(make_runs(*rows), **settings)
