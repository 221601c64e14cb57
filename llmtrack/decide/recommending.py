"""One sentence that says how to run the model under constraints, and what each other scenario was ruled out by."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.decide.comparing import known_metric
from llmtrack.decide.differences import Difference, in_figures
from llmtrack.decide.family import in_context
from llmtrack.decide.floor import say_floor
from llmtrack.decide.points import MEMORY, QUALITY, SPEED, Points, gather_points
from llmtrack.decide.verdicts import doubt, measure_more, score_command, tell
from llmtrack.decide.warned import grouped
from llmtrack.decide.wording import share_text
from llmtrack.errors import UsageError
from llmtrack.parameter import read_number
from llmtrack.tracking import ask
from llmtrack.units import MIB
from llmtrack.words import plural

if TYPE_CHECKING:
    import pandas as pd

_SIZE = re.compile(r"\s*((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_MIB_OF = {"": 1 / MIB, "k": 1e3 / MIB, "m": 1e6 / MIB, "g": 1e9 / MIB, "t": 1e12 / MIB}
_MIB_OF |= {"ki": 2**-10, "mi": 1.0, "gi": 2.0**10, "ti": 2.0**20}
NOT_SCORED = "no perplexity was scored"
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
        scenario: the scenario to run, or None if none fits or the measurements cannot tell which is best.
        run_id: its run, or None.
        sentence: the choice with its reason, in one sentence.
        ruled_out: scenario and reason of each other one.
        notes: what was left out of the choice, and the warnings that the runs it rests on carry themselves.
        measure: the command that measures more, where the measurements cannot tell; else empty.
    """

    scenario: str | None
    run_id: str | None
    sentence: str
    ruled_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    measure: str = ""


@dataclass(frozen=True)
class Broken:
    """A limit that a scenario does not keep to.

    Attributes:
        words: what is beyond it, or that it is not known.
        excess: by how much, as a share of the limit; None where the figure is not known.
    """

    words: str
    excess: float | None = None


def recommend(
    runs: pd.DataFrame, limits: Limits, objective: str = SPEED, baseline: str | None = None
) -> Recommendation:
    """Choose the scenario that is best in the objective among those that keep to the limits.

    It is best by the one rule of `llmtrack.decide.verdicts`: where noise or too few repeats leave open whether it is better
    than the reference or another that fits, nothing is recommended, and how to measure more is said.

    Args:
        runs: rows of `llmtrack.runs`, their raw samples added by `with_samples` where they are to count.
        limits: what must be kept to.
        objective: metric to be best in.
        baseline: scenario whose perplexity is the reference; else the one tracked as baseline, else that of the
            lowest perplexity.

    Raises:
        UsageError: the objective has no better direction, or nothing was measured.
    """
    known_metric(objective)
    if schema.metric(objective).better == "-":
        raise UsageError(f"{objective} has no better direction: it cannot be an objective")
    points = gather_points(in_context(runs), objective)
    table, notes = points.runs, list(points.notes)
    reference = _reference(points, baseline, limits, notes)
    broken = [_broken(run, reference, limits) for _, run in table.iterrows()]
    out = [
        (str(name), ", ".join(each.words for each in found))
        for name, found in zip(table["scenario"], broken, strict=True)
        if found
    ] + _left(runs, table)
    fitting = table[[not found for found in broken]].sort_values(
        objective, ascending=schema.metric(objective).better == "lower", kind="stable"
    )
    if fitting.empty:
        return Recommendation(None, None, _nothing(table, broken, limits), tuple(out), tuple(notes))
    best, *others = (run for _, run in fitting.iterrows())
    behind = tell(best, others, objective)
    out += [(ask.name(run), _how_far(run, each)) for run, each in zip(others, behind, strict=True)]
    lead = _lead(best, reference, objective)
    near = [run for run, each in zip(others, behind, strict=True) if not each.told]
    weighed = [best, *([] if reference is None else [reference]), *near]
    notes += say_floor(table, objective)
    warned = [(ask.name(run), line) for run in weighed for line in ask.lines(run, "warnings")]
    notes += [f"read with care: {line}" for line in grouped(warned, len(table))]
    told = ("better", "worse", "same")
    open_ones = [each for each in (*([lead] if lead else []), *behind) if each.verdict not in told]
    if open_ones:
        command = measure_more(best, max(each.repeats_needed for each in open_ones))
        sentence = _cannot_tell(best, others, reference, objective, open_ones[0], command)
        return Recommendation(None, None, sentence, tuple(out), tuple(notes), command)
    if not others and lead is None and _is_single(best, objective):
        notes.append(f"{objective} of {ask.name(best)} is a single value: how much it varies is not known")
    sentence = _sentence(best, table, reference, lead, limits, objective)
    return Recommendation(str(best["scenario"]), str(best["run_id"]), sentence, tuple(out), tuple(notes))


def parse_size(text: str) -> float:
    """Return a size such as `2GiB` or `500 MB` in MiB.

    Raises:
        UsageError: it is not understood, or has no unit.
    """
    found = _SIZE.fullmatch(text)
    if found is None or not found[2]:
        raise UsageError(f"{text!r} is not a size: use a number with a unit, such as 2GiB or 500MB")
    return read_number("size", found[1].replace(",", "")) * _MIB_OF[found[2].lower()]


def parse_percent(text: str) -> float:
    """Return a share such as `1%` as 0.01.

    Raises:
        UsageError: it is not understood.
    """
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a percentage: use 1%")
    return read_number("percentage", found[1]) / 100


def _reference(points: Points, baseline: str | None, limits: Limits, notes: list[str]) -> pd.Series | None:
    """Return the run whose perplexity the others' are compared with, or for want of any the timed baseline."""
    table, scored = points.runs, points.scored
    if baseline is not None:
        for runs in (table, scored):
            named = runs[ask.where(runs, "scenario", baseline)]
            if len(named):
                return named.iloc[0]
        raise UsageError(
            f"there is no timed scenario {baseline!r}: use one of {', '.join(map(str, table['scenario']))}"
        )
    known = table[table[QUALITY].notna()]
    for runs in (known, scored):
        marked = runs[ask.marked(runs, "baseline")]
        if len(marked):
            # Of several, that of the study which the choice is about.
            about = None if points.reference is None else points.reference.get("study_id")
            own = marked[ask.where(marked, "study_id", about)]
            return (own if len(own) else marked).iloc[0]
    if len(known):
        lowest = known.sort_values(QUALITY, kind="stable").iloc[0]
        if limits.perplexity_increase is not None:
            notes.append(
                f"no tracked baseline is among the runs: perplexity is judged against the lowest, {ask.name(lowest)}'s"
            )
        return lowest
    marked = table[ask.marked(table, "baseline")]
    return marked.iloc[0] if len(marked) else None


def _is_single(run: pd.Series, metric: str) -> bool:
    repeats = ask.number(run, schema.spread_key(metric, "n")) or 1
    return schema.metric(metric).sureness != "exact" and repeats < 2


def _broken(run: pd.Series, reference: pd.Series | None, limits: Limits) -> list[Broken]:
    found = []
    if limits.perplexity_increase is not None:
        increase, most = _increase(run, reference), limits.perplexity_increase
        if increase is None:
            found.append(Broken(NOT_SCORED))
        elif increase > most:
            words = f"perplexity {_change(increase)} is over {_change(most)}"
            found.append(Broken(words, (increase - most) / (1 + most)))
    if limits.memory_mib is not None:
        memory = ask.number(run, MEMORY)
        if memory is None:
            found.append(Broken("no peak memory was measured"))
        elif memory > limits.memory_mib:
            words = f"peak memory {memory:,.0f} MiB is over {limits.memory_mib:,.0f} MiB"
            found.append(Broken(words, memory / max(limits.memory_mib, 1e-9) - 1))
    return found


def _increase(run: pd.Series, reference: pd.Series | None) -> float | None:
    value = ask.number(run, QUALITY)
    base = None if reference is None else ask.number(reference, QUALITY)
    return None if value is None or not base else value / base - 1


def _lead(best: pd.Series, reference: pd.Series | None, objective: str) -> Difference | None:
    """Return how the best differs from the reference; None if it is it, or the reference was not timed."""
    if reference is None or reference["run_id"] == best["run_id"] or not ask.has(reference, objective):
        return None
    (found,) = tell(reference, [best], objective)
    return None if found.verdict == "missing" else found


def _sentence(
    best: pd.Series,
    points: pd.DataFrame,
    reference: pd.Series | None,
    lead: Difference | None,
    limits: Limits,
    objective: str,
) -> str:
    parts = [_amount(best, objective)]
    if lead is not None and lead.ratio is not None and reference is not None:
        parts[0] += f", {_times(lead, ask.name(reference))}"
    increase = _increase(best, reference)
    if increase is not None:
        own = reference is not None and reference["run_id"] == best["run_id"]
        against = "" if own else f" ({_change(increase)})"
        parts.append(f"perplexity {float(best[QUALITY]):.3f}{against}")
    elif limits.perplexity_increase is None:
        parts.append("perplexity not known")
    if ask.has(best, MEMORY):
        parts.append(f"{float(best[MEMORY]):,.0f} MiB peak memory")
    among = (
        f"{_best_in(objective)} of {plural(len(points), 'scenario')}"
        if len(points) > 1
        else "the only scenario"
    )
    kept = " that keeps to the limits" if limits != Limits() else ""
    return f"Run {best['scenario']}{doubt(best)}: {among}{kept}{_of_model(best)}, with {_listed(parts)}."


# Best in a metric, as a person says it.
_SUPERLATIVES = {"tokens/s": "the fastest", "s": "the quickest", "ms": "the quickest", "MiB": "the smallest"}


def _best_in(metric: str) -> str:
    """Return `the fastest`, and in which metric where there are several such speeds."""
    entry = schema.metric(metric)
    best = _SUPERLATIVES.get(entry.unit, "the best")
    if metric == "tokens_per_sec":
        return best
    return f"{best} in {entry.shown.title if entry.shown else metric}"


def _times(lead: Difference, name: str) -> str:
    if not lead.told:
        return f"no significant difference from {name} ({in_figures(lead)})"
    return f"{in_figures(lead)} that of {name}"


def _cannot_tell(
    best: pd.Series,
    others: Sequence[pd.Series],
    reference: pd.Series | None,
    objective: str,
    why: Difference,
    command: str,
) -> str:
    rivals = {ask.name(run): run for run in (*([] if reference is None else [reference]), *others)}
    rivals.pop(ask.name(best), None)
    figures = [f"{name} {_amount(run, objective)}" for name, run in rivals.items() if ask.has(run, objective)]
    return (
        f"Nothing can be recommended yet{_of_model(best)}: {ask.name(best)} has {_amount(best, objective)} against "
        f"{_listed(figures)}: inconclusive ({why.why}); to settle it run: {command}"
    )


def _nothing(points: pd.DataFrame, broken: Sequence[Sequence[Broken]], limits: Limits) -> str:
    asked = []
    if limits.perplexity_increase is not None:
        asked.append(f"perplexity {_change(limits.perplexity_increase)}")
    if limits.memory_mib is not None:
        asked.append(f"{limits.memory_mib:,.0f} MiB")
    start = f"Nothing fits: none of {plural(len(points), 'scenario')} keeps to {_listed(asked)}"
    # The fewest limits broken, and of those by the least; what has no figure is not known to be near.
    ranked = [
        (len(found), max(each.excess for each in found if each.excess is not None), index)
        for index, found in enumerate(broken)
        if all(each.excess is not None for each in found)
    ]
    if not ranked:
        lacking = dict.fromkeys(each.words for found in broken for each in found if each.excess is None)
        return f"{start}; which is nearest is not known ({', '.join(lacking)}){_to_score(points.iloc[0], lacking)}"
    index = min(ranked)[2]
    near, words = points.iloc[index], ", ".join(each.words for each in broken[index])
    return f"{start}; the nearest is {ask.name(near)}{_of_model(near)} ({words})."


def _to_score(run: pd.Series, lacking: Iterable[str]) -> str:
    """Return the end of a sentence that lacks perplexities: the command that scores the model, as a run was asked for."""
    if NOT_SCORED not in lacking:
        return "."
    model = ask.text(run, "model_id") or ask.text(run, "model")
    return f"; to score it run: {score_command(run)}, then ask again with --model {shlex.quote(model)}"


def _left(runs: pd.DataFrame, points: pd.DataFrame) -> list[tuple[str, str]]:
    """Return what has no figure of the same experiments, since it is not finished."""
    of_experiments = runs["experiment"].isin(points["experiment"].unique())
    left = runs[~ask.where(runs, "status", ask.FINISHED) & of_experiments]
    left = left[~left["scenario"].isin(points["scenario"])].drop_duplicates("scenario")
    return [(ask.name(run), ask.state(run)) for _, run in left.iterrows()]


def _how_far(run: pd.Series, behind: Difference) -> str:
    amount = _amount(run, behind.metric)
    if behind.verdict == "same":
        return f"{amount}, no significant difference: {in_figures(behind)}"
    if behind.verdict == "unknown":
        return f"{amount}, inconclusive: {behind.words}"
    return f"{amount}, {in_figures(behind)}" if behind.ratio else amount


def _of_model(run: pd.Series) -> str:
    model, device, study = (ask.text(run, key) for key in ("model_id", "device", "study_id"))
    named = [f"for {model}"] if model else []
    named += [f"on {device}"] if device else []
    return "".join(f" {each}" for each in (*named, *([f"({study})"] if study else [])))


def _change(share: float) -> str:
    return share_text(share)


def _amount(run: pd.Series, metric: str) -> str:
    unit = schema.metric(metric).unit
    return f"{float(run[metric]):,.4g} {metric if unit == '-' else unit}"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)
