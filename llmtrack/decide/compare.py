"""Compare tracked runs: every metric of every pair, separating differences from noise."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from llmtrack import metrics as schema
from llmtrack.decide.differences import Difference
from llmtrack.decide.noise_floor import noise_floor_lines
from llmtrack.decide.selection import Pair, Selection, as_runs, pair_runs, runs_of_pairs
from llmtrack.decide.significance import ALPHA
from llmtrack.decide.verdicts import difference_between, group_doubts, with_samples_of_pairs
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import CHANCE, read_number, require_texts
from llmtrack.tracked.frames import check_columns, pick
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

_WITH_RATIO = ("better", "worse", "changed", "same", "unknown")


@dataclass(frozen=True)
class Comparison:
    """A pair compared in one metric."""

    pair: Pair
    difference: Difference

    @property
    def other_environments(self) -> bool:
        """Whether the metric is not comparable because the environments differ."""
        return "different environments" in self.difference.words

    def row(self) -> dict[str, Any]:
        """Return the values of the columns `COLUMNS`; absent if unknown."""
        difference, metric = self.difference, schema.metric(self.difference.metric)
        row: dict[str, Any] = {
            "scenario": self.pair.candidate.name,
            "metric": difference.metric,
            "unit": metric.unit,
            "better": metric.better,
            "baseline": difference.baseline,
            "candidate": difference.candidate,
            "p_value": difference.p_value,
            "p_adjusted": difference.p_adjusted,
            "verdict": difference.verdict,
            "words": difference.words,
            "doubts": "\n".join(difference.doubts) or None,
            "experiment": self.pair.candidate.experiment or None,
            "baseline_scenario": self.pair.baseline.name,
            "run_id": self.pair.candidate.run_id,
            "baseline_run_id": self.pair.baseline.run_id,
        }
        if difference.verdict in _WITH_RATIO:
            row |= {"n_baseline": difference.n_baseline, "n_candidate": difference.n_candidate}
            if ratio := difference.ratio:
                row |= {"ratio": ratio.value, "ratio_low": ratio.low, "ratio_high": ratio.high}
        return row


@dataclass(frozen=True)
class CompareResult:
    """Result of comparing runs.

    Attributes:
        notes: what to know of them: scenarios without a counterpart, the noise floor, and warnings.
    """

    pairs: Sequence[Pair]
    comparisons: Sequence[Comparison]
    notes: tuple[str, ...] = ()

    @property
    def distinct(self) -> list[Comparison]:
        """The comparisons, with one row of a scenario that equals another one: it has no figures of its own."""
        seen: set[str] = set()
        distinct = []
        for comparison in self.comparisons:
            candidate = comparison.pair.candidate
            if not candidate.is_same_as or candidate.run_id not in seen:
                distinct.append(comparison)
            seen.add(candidate.run_id)
        return distinct


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
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.

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
    pairs, unmatched = pair_runs(
        as_runs(baseline, experiment, tracking_uri), as_runs(candidates, experiment, tracking_uri)
    )
    pairs = with_samples_of_pairs(pairs, tracking_uri)
    result = compare_pairs(pairs, metrics, unmatched, across_environments=across_environments, alpha=alpha)
    return to_frame(result.comparisons)


def compare_pairs(
    pairs: Sequence[Pair],
    metrics: Sequence[str] | None,
    unmatched: Sequence[str] = (),
    *,
    across_environments: bool = False,
    alpha: float = ALPHA,
) -> CompareResult:
    """Compare paired runs in some metrics, or in the headline metrics that any run has; see `compare`.

    Args:
        unmatched: candidates without a counterpart, to note.
    """
    alpha = read_number("alpha", alpha, CHANCE)
    runs = runs_of_pairs(pairs)
    names = _known_metrics(runs, None if metrics is None else require_texts("metric", metrics))
    difference = partial(difference_between, across_environments=across_environments, alpha=alpha)
    comparisons = [
        Comparison(pair, difference(pair.baseline, pair.candidate, name)) for pair in pairs for name in names
    ]
    environments = any(comparison.other_environments for comparison in comparisons)
    if comparisons and all(comparison.difference.verdict == "not comparable" for comparison in comparisons):
        remedy = "; pass across_environments (--across-environments) to compare nevertheless" if environments else ""
        raise UsageError(f"nothing can be compared: {comparisons[0].difference.words}{remedy}")
    doubts = group_doubts([comparison.difference for comparison in comparisons], len(runs))
    notes = [f"{name} has no counterpart in the baseline" for name in unmatched]
    if environments:
        notes.append("--across-environments compares speed and memory of different machines or versions, too")
    notes += noise_floor_lines(runs, *names)
    notes += [f"read with care: {line}" for line in doubts]
    return CompareResult(pairs, comparisons, tuple(notes))


def sort_comparisons(result: CompareResult, sort: str) -> CompareResult:
    """Sort by a column of `compare`, descending with a leading `-`; comparisons without a value come last.

    Raises:
        UsageError: the column does not exist.
    """
    name = sort.removeprefix("-")
    check_columns([name], list(COLUMNS))
    values = [(comparison, comparison.row().get(name)) for comparison in result.comparisons]
    known = [(comparison, value) for comparison, value in values if value is not None and value == value]
    known.sort(key=lambda row: row[1], reverse=sort.startswith("-"))
    unknown = [comparison for comparison, value in values if value is None or value != value]
    return replace(result, comparisons=[*(comparison for comparison, _ in known), *unknown])


def to_frame(comparisons: Sequence[Comparison], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """Convert comparisons to the table that `compare` returns, or to some of its columns.

    Raises:
        UsageError: a column does not exist.
    """
    import pandas as pd

    rows = [comparison.row() for comparison in comparisons]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return frame if columns is None else pick(frame, columns)


def require_metric(name: str, among: Sequence[str] = ()) -> str:
    """Validate a metric's name.

    Raises:
        UsageError: it is unknown; the message suggests close matches.
    """
    names = list(dict.fromkeys([*schema.METRIC_BY_NAME, *among]))
    if name in names:
        return name
    matches = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(matches)}?" if matches else "docs/metrics.md lists them"
    raise UsageError(f"there is no metric {name!r}: {hint}")


def _known_metrics(runs: Runs, metrics: Sequence[str] | None) -> list[str]:
    if metrics is None:
        headlines = [entry.name for entry in schema.in_column_order(schema.METRICS) if entry.headline]
        return [name for name in headlines if any(run.number(name) is not None for run in runs)]
    # Plug-ins may add metrics.
    others = sorted({name for run in runs for name in run.metrics})
    return [require_metric(name, others) for name in metrics]
