"""One sentence that says how to run the model under constraints, and what each other scenario was ruled out by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.decide import kinds
from llmtrack.decide.comparing import known_metric, value_of
from llmtrack.decide.points import MEMORY, QUALITY, SPEED, gather_points
from llmtrack.errors import UsageError
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_MIB = {"": 2**-20, "k": 1e3 / 2**20, "m": 1e6 / 2**20, "g": 1e9 / 2**20, "t": 1e12 / 2**20}
_MIB |= {"ki": 2**-10, "mi": 1.0, "gi": 2.0**10, "ti": 2.0**20}
_PERCENT = re.compile(r"\s*\+?(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Limits:
    """What a scenario must keep to.

    Attributes:
        perplexity_increase: relative, such as 0.01, against the baseline's; None: any.
        memory_mib: peak memory; None: any.
    """

    perplexity_increase: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """A choice and its reasons.

    Attributes:
        scenario: the scenario to run, or None if none fits.
        run_id: its run, or None.
        sentence: the choice with its reason, in one sentence.
        ruled_out: scenario and reason of each other one.
        notes: what was left out of the choice.
    """

    scenario: str | None
    run_id: str | None
    sentence: str
    ruled_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()


def recommend(
    runs: pd.DataFrame, limits: Limits, objective: str = SPEED, baseline: str | None = None
) -> Recommendation:
    """Choose the scenario that is best in the objective among those that keep to the limits.

    Args:
        runs: rows of `llmtrack.runs`.
        limits: what must be kept to.
        objective: metric to be best in.
        baseline: scenario whose perplexity is the reference; else the one tracked as baseline, else that of the
            lowest perplexity.

    Raises:
        UsageError: the objective has no better direction, or nothing was measured.
    """
    known_metric(objective)
    if kinds.better(objective) == "-":
        raise UsageError(f"{objective} has no better direction: it cannot be an objective")
    points = gather_points(runs, objective)
    table = points.runs
    reference = _reference(table, baseline)
    reasons = [_why_ruled_out(run, reference, limits) for _, run in table.iterrows()]
    fitting = table[[not reason for reason in reasons]].sort_values(
        objective, ascending=kinds.better(objective) == "lower", kind="stable"
    )
    out = [(str(name), why) for name, why in zip(table["scenario"], reasons, strict=True) if why]
    out += _failed(runs, table)
    if fitting.empty:
        return Recommendation(None, None, _nothing(table, reasons, limits), tuple(out), points.notes)
    best = fitting.iloc[0]
    out += [(str(run["scenario"]), _how_far(run, best, objective)) for _, run in fitting.iloc[1:].iterrows()]
    sentence = _sentence(best, table, reference, limits, objective)
    return Recommendation(str(best["scenario"]), str(best["run_id"]), sentence, tuple(out), points.notes)


def parse_size(text: str) -> float:
    """Return a size such as `2GiB` or `500 MB` in MiB.

    Raises:
        UsageError: it is not understood, or has no unit.
    """
    found = _SIZE.fullmatch(text)
    if found is None or not found[2]:
        raise UsageError(f"{text!r} is not a size: use a number with a unit, such as 2GiB or 500MB")
    return float(found[1]) * _MIB[found[2].lower()]


def parse_percent(text: str) -> float:
    """Return a share such as `1%` as 0.01.

    Raises:
        UsageError: it is not understood.
    """
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a percentage: use 1%")
    return float(found[1]) / 100


def _reference(points: pd.DataFrame, baseline: str | None) -> pd.Series | None:
    """Return the run whose perplexity the others' are compared with."""
    if baseline is not None:
        named = points[ask.where(points, "scenario", baseline)]
        if named.empty:
            raise UsageError(
                f"there is no timed scenario {baseline!r}: use one of {', '.join(points['scenario'])}"
            )
        return named.iloc[0]
    scored = points[points[QUALITY].notna()]
    if scored.empty:
        return None
    marked = scored[ask.marked(scored, "baseline")]
    return marked.iloc[0] if len(marked) else scored.sort_values(QUALITY, kind="stable").iloc[0]


def _why_ruled_out(run: pd.Series, reference: pd.Series | None, limits: Limits) -> str:
    reasons = []
    if limits.perplexity_increase is not None:
        increase = _increase(run, reference)
        if increase is None:
            reasons.append("no perplexity was scored")
        elif increase > limits.perplexity_increase:
            reasons.append(f"perplexity {_change(increase)} is over {_change(limits.perplexity_increase)}")
    if limits.memory_mib is not None:
        memory = value_of(run, MEMORY)
        if memory is None:
            reasons.append("no peak memory was measured")
        elif memory > limits.memory_mib:
            reasons.append(f"peak memory {memory:,.0f} MiB is over {limits.memory_mib:,.0f} MiB")
    return ", ".join(reasons)


def _increase(run: pd.Series, reference: pd.Series | None) -> float | None:
    value = value_of(run, QUALITY)
    base = None if reference is None else value_of(reference, QUALITY)
    return None if value is None or not base else value / base - 1


def _sentence(
    best: pd.Series, points: pd.DataFrame, reference: pd.Series | None, limits: Limits, objective: str
) -> str:
    parts = [f"{_amount(best, objective)}"]
    if reference is not None and reference["run_id"] != best["run_id"] and value_of(reference, objective):
        factor = float(best[objective]) / float(reference[objective])
        parts[0] += f" ({factor:.2f} times {reference['scenario']})"
    increase = _increase(best, reference)
    if increase is not None:
        own = reference is not None and reference["run_id"] == best["run_id"]
        against = "" if own else f" ({_change(increase)})"
        parts.append(f"perplexity {float(best[QUALITY]):.3f}{against}")
    elif limits.perplexity_increase is None:
        parts.append("perplexity not known")
    if value_of(best, MEMORY) is not None:
        parts.append(f"{float(best[MEMORY]):,.0f} MiB peak memory")
    among = (
        f"of {len(points)} scenarios it is the best in {objective}"
        if len(points) > 1
        else "the only scenario"
    )
    kept = " that keeps to the limits" if limits != Limits() else ""
    return f"Run {best['scenario']}: {among}{kept}, with {_listed(parts)}."


def _nothing(points: pd.DataFrame, reasons: Sequence[str], limits: Limits) -> str:
    asked = []
    if limits.perplexity_increase is not None:
        asked.append(f"perplexity {_change(limits.perplexity_increase)}")
    if limits.memory_mib is not None:
        asked.append(f"{limits.memory_mib:,.0f} MiB")
    # The one that fails the fewest limits is the nearest.
    nearest = min(range(len(reasons)), key=lambda index: reasons[index].count(","))
    return (
        f"Nothing fits: none of {len(points)} scenarios keeps to {_listed(asked)}; "
        f"the nearest is {points['scenario'].iloc[nearest]} ({reasons[nearest]})."
    )


def _failed(runs: pd.DataFrame, points: pd.DataFrame) -> list[tuple[str, str]]:
    left = runs[
        ~ask.where(runs, "status", ask.FINISHED) & runs["experiment"].isin(points["experiment"].unique())
    ]
    left = left[~left["scenario"].isin(points["scenario"])].drop_duplicates("scenario")
    return [(ask.name(run), ask.state(run)) for _, run in left.iterrows()]


def _how_far(run: pd.Series, best: pd.Series, objective: str) -> str:
    from llmtrack.report.table import intervals_overlap

    behind = f"{_amount(run, objective)}"
    return f"{behind}, no different within the noise" if intervals_overlap(run, best, objective) else behind


def _change(share: float) -> str:
    return f"{100 * share:+.3g} %"


def _amount(run: pd.Series, metric: str) -> str:
    unit = kinds.unit(metric)
    return f"{float(run[metric]):,.4g} {metric if unit == '-' else unit}"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)
