"""Compare tracked runs: every metric of every pair, separating differences from noise."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Union

from llmtrack import metrics as schema
from llmtrack.decide.differences import ALPHA, Difference
from llmtrack.decide.selection import Pair, match, select_all
from llmtrack.decide.verdicts import tell_pairs, with_samples
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import CHANCE, read_number
from llmtrack.spec.text_args import texts
from llmtrack.tracked.frames import runs_of
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    import pandas as pd

# Columns and dtypes of `compare`'s result.
COLUMNS: dict[str, str] = {
    "scenario": "string",
    "metric": "string",
    "unit": "string",
    "better": "string",
    "baseline": "float64",
    "candidate": "float64",
    "ratio": "float64",
    "ratio_low": "float64",
    "ratio_high": "float64",
    "n_baseline": "Int64",
    "n_candidate": "Int64",
    "p_value": "float64",
    "p_adjusted": "float64",
    "verdict": "string",
    "words": "string",
    "doubts": "string",
    "experiment": "string",
    "baseline_scenario": "string",
    "run_id": "string",
    "baseline_run_id": "string",
}

Selection = Union[str, Sequence[str], "pd.DataFrame", Runs]
"""Selectors, rows from `llmtrack.runs`, or runs."""

_COMPARED = ("better", "worse", "changed", "same", "unknown")


def compare(
    baseline: Selection,
    candidates: Selection,
    metrics: Sequence[str] | None = None,
    *,
    experiment: str | None = None,
    across_environments: bool = False,
    alpha: float = ALPHA,
    tracking_uri: str | None = None,
) -> pd.DataFrame:
    """Compare candidates with a baseline, metric by metric.

    Args:
        baseline: one or more selectors (see `llmtrack.decide.selection.select`), or rows from `llmtrack.runs`.
        candidates: likewise. A baseline of one scenario is compared with all of them; otherwise scenarios are paired by
            name.
        metrics: names from docs/metrics.md; by default the headline metrics that any run has.
        experiment: restrict to this llmtrack or MLflow experiment.
        across_environments: also compare speed and memory of different machines or versions.
        alpha: accepted probability of a false alarm over all comparisons of a study in a metric.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Returns:
        One row per pair and metric, in the order of the candidates: `scenario`, `metric`, its `unit` and `better`
            direction; the headline values `baseline` and `candidate` in that unit; `ratio` of the medians (candidate
            over baseline) with its 95 % bootstrap interval `ratio_low` to `ratio_high`; the numbers of raw samples;
            `p_value` (Mann-Whitney, two-sided) and `p_adjusted` (for the comparisons of the study); `verdict`
            (`better`, `worse`, `changed`, `same`, `unknown`, `not comparable`, `failed` or `missing`) and its
            explanation `words`; `doubts`, the warnings of either run, one per line; the run ids. Dtypes are those of
            `COLUMNS`; unknown values are NaN or `<NA>`.

    Raises:
        UsageError: a selector or metric is invalid, or nothing can be paired or compared.
        TrackingError: the store cannot be read.
    """
    pairs, _ = match(as_runs(baseline, experiment, tracking_uri), as_runs(candidates, experiment, tracking_uri))
    pairs = with_samples_of(pairs, tracking_uri)
    return compare_pairs(pairs, metrics, across_environments=across_environments, alpha=alpha)


def as_runs(selection: Selection, experiment: str | None, tracking_uri: str | None) -> Runs:
    """Return the selected runs: rows from `llmtrack.runs`, or what selectors match."""
    import pandas as pd

    if isinstance(selection, Runs):
        return selection
    if isinstance(selection, pd.DataFrame):
        return runs_of(selection)
    return select_all(selection, experiment, tracking_uri)


def with_samples_of(pairs: Sequence[Pair], tracking_uri: str | None) -> list[Pair]:
    """Add samples, noise floors and comparison families to pairs; see `verdicts.with_samples`."""
    known = {run.run_id: run for run in with_samples(runs_of_pairs(pairs), tracking_uri)}

    def with_it(run: Run) -> Run:
        found = known[run.run_id]
        return replace(run, samples=found.samples, floors=found.floors, family=found.family)

    return [Pair(with_it(pair.baseline), with_it(pair.candidate)) for pair in pairs]


def runs_of_pairs(pairs: Sequence[Pair]) -> Runs:
    """Return the distinct runs of pairs."""
    # Of a run listed under several names, keep the last.
    return Runs({run.run_id: run for pair in pairs for run in (pair.baseline, pair.candidate)}.values())


def compare_pairs(
    pairs: Sequence[Pair],
    metrics: Sequence[str] | None,
    *,
    across_environments: bool = False,
    alpha: float = ALPHA,
) -> pd.DataFrame:
    """Compare paired runs; see `compare`.

    Args:
        metrics: names, or None for the headline metrics that any run has.
    """
    import pandas as pd

    rows: list[dict[str, Any]] = []
    alpha = read_number("alpha", alpha, CHANCE)
    for metric in _chosen(pairs, None if metrics is None else texts("metric", metrics)):
        found = tell_pairs(
            [(pair.baseline, pair.candidate) for pair in pairs],
            metric,
            across_environments=across_environments,
            alpha=alpha,
        )
        for number, (pair, each) in enumerate(zip(pairs, found, strict=True)):
            rows.append({"_pair": number, **_row(pair, metric, each)})
    table = pd.DataFrame(rows, columns=["_pair", *COLUMNS]).sort_values("_pair", kind="stable")
    table = table.drop(columns="_pair").reset_index(drop=True).astype(COLUMNS)
    refused = table[table["verdict"] == "not comparable"]
    if len(refused) and len(refused) == len(table):
        raise UsageError(f"nothing can be compared: {refused['words'].iloc[0]}{_remedy(refused)}")
    return table


def known_metric(name: str, among: Sequence[str] = ()) -> str:
    """Validate a metric's name.

    Raises:
        UsageError: it is unknown; the message suggests close matches.
    """
    names = [*schema.METRIC_BY_NAME, *among]
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "docs/metrics.md lists them"
    raise UsageError(f"there is no metric {name!r}: {hint}")


def _chosen(pairs: Sequence[Pair], metrics: Sequence[str] | None) -> list[str]:
    runs = [run for pair in pairs for run in (pair.baseline, pair.candidate)]
    if metrics is None:
        headlines = [entry.name for entry in schema.in_place(schema.METRICS) if entry.headline]
        return [name for name in headlines if any(run.number(name) is not None for run in runs)]
    # Plug-ins may add metrics.
    further = {name for run in runs for name in run.metrics}
    return [known_metric(name, sorted(further)) for name in metrics]


def _row(pair: Pair, metric: str, found: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "scenario": pair.candidate.name,
        "metric": metric,
        "unit": schema.metric(metric).unit,
        "better": schema.metric(metric).better,
        "baseline": found.baseline,
        "candidate": found.candidate,
        "p_value": found.p_value,
        "p_adjusted": found.p_adjusted,
        "verdict": found.verdict,
        "words": found.words,
        "doubts": "\n".join(found.doubts) or None,
        "experiment": pair.candidate.experiment or None,
        "baseline_scenario": pair.baseline.name,
        "run_id": pair.candidate.run_id,
        "baseline_run_id": pair.baseline.run_id,
    }
    if found.verdict not in _COMPARED:
        return row
    counts = {"n_baseline": found.n_baseline, "n_candidate": found.n_candidate}
    ratio = found.ratio
    ends = {} if ratio is None else {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
    return row | counts | ends


def _remedy(refused: pd.DataFrame) -> str:
    if refused["words"].str.contains("different environments").any():
        return "; pass across_environments (--across-environments) to compare nevertheless"
    return ""
