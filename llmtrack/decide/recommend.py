"""Recommend in one sentence how to run the model under constraints, and explain why the other scenarios are ruled out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmtrack import metrics as schema
from llmtrack.decide.candidates import MEMORY, QUALITY, SPEED, Candidates, gather_candidates
from llmtrack.decide.compare import require_metric
from llmtrack.decide.differences import Difference, difference_text, share_text
from llmtrack.decide.noise_floor import noise_floor_lines, with_context
from llmtrack.decide.verdicts import differences_from, doubt, group_warnings, measure_command, score_command
from llmtrack.errors import UsageError
from llmtrack.host.formatting import MIB, plural, significant
from llmtrack.spec.parameter import read_number
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

_SIZE = re.compile(r"\s*((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_MIB_OF = {"": 1 / MIB, "k": 1e3 / MIB, "m": 1e6 / MIB, "g": 1e9 / MIB, "t": 1e12 / MIB}
_MIB_OF |= {"ki": 2**-10, "mi": 1.0, "gi": 2.0**10, "ti": 2.0**20}
NOT_SCORED = "no perplexity was scored"
_PERCENT = re.compile(r"\s*\+?(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Limits:
    """Constraints on a scenario.

    Attributes:
        perplexity_increase: relative to the baseline, such as 0.01; None for any.
        memory_mib: peak memory; None for any.
    """

    perplexity_increase: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """A choice and its reasons.

    Attributes:
        scenario: the scenario to run, or None if none fits or the result is inconclusive.
        run_id: its run, or None.
        sentence: the choice with its reason.
        ruled_out: each other scenario with the reason.
        notes: runs left out, and warnings of the runs behind the choice.
        measure: command to measure more if inconclusive; else empty.
    """

    scenario: str | None
    run_id: str | None
    sentence: str
    ruled_out: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()
    measure: str = ""


@dataclass(frozen=True)
class Violation:
    """A violated limit.

    Attributes:
        words: the violation, or that the value is unknown.
        excess: amount as a share of the limit; None if the value is unknown.
    """

    words: str
    excess: float | None = None


def recommend(runs: Runs, limits: Limits, objective: str = SPEED, baseline: str | None = None) -> Recommendation:
    """Choose the scenario that is best in the objective within the limits.

    Best by the verdicts of `llmtrack.decide.verdicts`: if noise or too few repeats leave open whether it is better than
    the reference or another eligible scenario, nothing is recommended and the command to measure more is given.

    Args:
        runs: tracked runs, with raw samples added by `with_samples` if they are to count.
        objective: metric to optimize.
        baseline: scenario whose perplexity is the reference; by default the tracked baseline, else the one with the
            lowest perplexity.

    Raises:
        UsageError: the objective has no better direction, or nothing was measured.
    """
    require_metric(objective)
    if schema.metric(objective).better == "-":
        raise UsageError(f"{objective} has no better direction: it cannot be an objective")
    points = gather_candidates(with_context(runs), objective)
    table, notes = points.runs, list(points.notes)
    reference = _reference(points, baseline, limits, notes)
    broken = [_broken(run, reference, limits) for run in table]
    out = [
        (run.scenario, ", ".join(each.words for each in found))
        for run, found in zip(table, broken, strict=True)
        if found
    ] + _left(runs, table)
    fits = Runs(run for run, found in zip(table, broken, strict=True) if not found)
    fitting = fits.by(objective, highest_first=schema.metric(objective).better == "higher")
    if not fitting:
        return Recommendation(None, None, _nothing(table, broken, limits), tuple(out), tuple(notes))
    best, *others = fitting
    behind = differences_from(best, others, objective)
    out += [(run.name, _how_far(run, each)) for run, each in zip(others, behind, strict=True)]
    lead = _lead(best, reference, objective)
    near = [run for run, each in zip(others, behind, strict=True) if not each.conclusive]
    weighed = [best, *([] if reference is None else [reference]), *near]
    notes += noise_floor_lines(table, objective)
    warned = [(run.name, line) for run in weighed for line in run.warnings]
    notes += [f"read with care: {line}" for line in group_warnings(warned, len(table))]
    conclusive = ("better", "worse", "same")
    open_ones = [each for each in (*([lead] if lead else []), *behind) if each.verdict not in conclusive]
    if open_ones:
        command = measure_command(best, max(each.repeats_needed for each in open_ones))
        sentence = _cannot_tell(best, others, reference, objective, open_ones[0], command)
        return Recommendation(None, None, sentence, tuple(out), tuple(notes), command)
    if not others and lead is None and _is_single(best, objective):
        notes.append(f"{objective} of {best.name} is a single value: its variation is unknown")
    sentence = _sentence(best, table, reference, lead, limits, objective)
    return Recommendation(best.scenario, best.run_id, sentence, tuple(out), tuple(notes))


def parse_size(text: str) -> float:
    """Parse a size such as `2GiB` or `500 MB`; return MiB.

    Raises:
        UsageError: it is invalid or has no unit.
    """
    found = _SIZE.fullmatch(text)
    if found is None or not found[2]:
        raise UsageError(f"{text!r} is not a size: use a number with a unit, such as 2GiB or 500MB")
    return read_number("size", found[1].replace(",", "")) * _MIB_OF[found[2].lower()]


def parse_percent(text: str) -> float:
    """Parse a percentage such as `1%`; return 0.01.

    Raises:
        UsageError: it is invalid.
    """
    found = _PERCENT.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is not a percentage: use 1%")
    return read_number("percentage", found[1]) / 100


def _reference(points: Candidates, baseline: str | None, limits: Limits, notes: list[str]) -> Run | None:
    """Return the run whose perplexity is the reference, or else the timed baseline."""
    table, scored = points.runs, points.scored
    if baseline is not None:
        named = next((run for run in (*table, *scored) if run.scenario == baseline), None)
        if named is None:
            raise UsageError(f"there is no timed scenario {baseline!r}: use one of {', '.join(table.scenarios)}")
        return named
    known = table.where(lambda run: run.has(QUALITY))
    about = points.reference.study_id if points.reference else ""
    for runs in (known, scored):
        marked = runs.where(lambda run: run.baseline)
        if marked:
            # Of several, the one of the study behind the choice.
            return next((run for run in marked if run.study_id == about != ""), marked[0])
    if known:
        lowest = known.by(QUALITY)[0]
        if limits.perplexity_increase is not None:
            notes.append(
                f"no tracked baseline is among the runs: perplexity is judged against the lowest, {lowest.name}'s"
            )
        return lowest
    return table.baseline


def _is_single(run: Run, metric: str) -> bool:
    repeats = run.number(schema.spread_key(metric, "n")) or 1
    return schema.metric(metric).sureness != "exact" and repeats < 2


def _broken(run: Run, reference: Run | None, limits: Limits) -> list[Violation]:
    found = []
    if limits.perplexity_increase is not None:
        increase, most = _increase(run, reference), limits.perplexity_increase
        if increase is None:
            found.append(Violation(NOT_SCORED))
        elif increase > most:
            words = f"perplexity {_change(increase)} is over {_change(most)}"
            found.append(Violation(words, (increase - most) / (1 + most)))
    if limits.memory_mib is not None:
        memory = run.number(MEMORY)
        if memory is None:
            found.append(Violation("no peak memory was measured"))
        elif memory > limits.memory_mib:
            words = f"peak memory {memory:,.0f} MiB is over {limits.memory_mib:,.0f} MiB"
            found.append(Violation(words, memory / max(limits.memory_mib, 1e-9) - 1))
    return found


def _increase(run: Run, reference: Run | None) -> float | None:
    value = run.number(QUALITY)
    base = None if reference is None else reference.number(QUALITY)
    return None if value is None or not base else value / base - 1


def _lead(best: Run, reference: Run | None, objective: str) -> Difference | None:
    """Return the difference of the best from the reference; None if they are the same, or the reference was not timed."""
    if reference is None or reference.run_id == best.run_id or not reference.has(objective):
        return None
    (found,) = differences_from(reference, [best], objective)
    return None if found.verdict == "missing" else found


def _sentence(
    best: Run,
    points: Runs,
    reference: Run | None,
    lead: Difference | None,
    limits: Limits,
    objective: str,
) -> str:
    parts = [_amount(best, objective)]
    if lead is not None and lead.ratio is not None and reference is not None:
        parts[0] += f", {_times(lead, reference.name)}"
    increase = _increase(best, reference)
    if objective == QUALITY:
        pass  # said already
    elif increase is not None:
        own = reference is not None and reference.run_id == best.run_id
        against = "" if own else f" ({_change(increase)})"
        parts.append(f"perplexity {best.metrics[QUALITY]:.3f}{against}")
    elif limits.perplexity_increase is None:
        parts.append("perplexity not known")
    if best.has(MEMORY) and objective != MEMORY:
        parts.append(f"{best.metrics[MEMORY]:,.0f} MiB peak memory")
    among = f"{_best_in(objective)} of {plural(len(points), 'scenario')}" if len(points) > 1 else "the only scenario"
    kept = " that keeps to the limits" if limits != Limits() else ""
    return f"Run {best.scenario}{doubt(best)}: {among}{kept}{_of_model(best)}, with {_listed(parts)}."


# Superlatives by unit.
_SUPERLATIVES = {"tokens/s": "the fastest", "s": "the quickest", "ms": "the quickest", "MiB": "the smallest"}


def _best_in(metric: str) -> str:
    """Return `the fastest`, with the metric if there are several such speeds."""
    entry = schema.metric(metric)
    best = _SUPERLATIVES.get(entry.unit, "the best")
    if metric == "tokens_per_sec":
        return best
    return f"{best} in {entry.shown.title if entry.shown else metric}"


def _times(lead: Difference, name: str) -> str:
    if not lead.conclusive:
        return f"no significant difference from {name} ({difference_text(lead)})"
    return f"{difference_text(lead)} {'against' if schema.metric(lead.metric).of_text else 'that of'} {name}"


def _cannot_tell(
    best: Run,
    others: Sequence[Run],
    reference: Run | None,
    objective: str,
    why: Difference,
    command: str,
) -> str:
    rivals = {run.name: run for run in (*([] if reference is None else [reference]), *others)}
    rivals.pop(best.name, None)
    figures = [f"{name} {_amount(run, objective)}" for name, run in rivals.items() if run.has(objective)]
    return (
        f"Nothing can be recommended yet{_of_model(best)}: {best.name} has {_amount(best, objective)} against "
        f"{_listed(figures)}: inconclusive ({why.why}); to settle it run: {command}"
    )


def _nothing(points: Runs, broken: Sequence[Sequence[Violation]], limits: Limits) -> str:
    asked = []
    if limits.perplexity_increase is not None:
        asked.append(f"perplexity {_change(limits.perplexity_increase)}")
    if limits.memory_mib is not None:
        asked.append(f"{limits.memory_mib:,.0f} MiB")
    start = f"Nothing fits: none of {plural(len(points), 'scenario')} keeps to {_listed(asked)}"
    # Fewest limits broken first, then the smallest excess; unknown values do not count as near.
    ranked = [
        (len(found), max(each.excess for each in found if each.excess is not None), index)
        for index, found in enumerate(broken)
        if all(each.excess is not None for each in found)
    ]
    if not ranked:
        lacking = dict.fromkeys(each.words for found in broken for each in found if each.excess is None)
        return f"{start}; the nearest is unknown ({', '.join(lacking)}){_to_score(points[0], lacking)}"
    index = min(ranked)[2]
    near, words = points[index], ", ".join(each.words for each in broken[index])
    return f"{start}; the nearest is {near.name}{_of_model(near)} ({words})."


def _to_score(run: Run, lacking: Iterable[str]) -> str:
    """Return the end of a sentence without perplexities: the command to score the model."""
    if NOT_SCORED not in lacking:
        return "."
    model = run.text("model_id") or run.text("model")
    return f"; to score it run: {score_command(run)}, then ask again with --model {shlex.quote(model)}"


def _left(runs: Runs, points: Runs) -> list[tuple[str, str]]:
    """Return the unfinished runs of the same experiments with their state."""
    experiments = {run.experiment for run in points}
    left = runs.where(
        lambda run: not run.is_finished and run.experiment in experiments and run.scenario not in points.scenarios
    )
    return [(run.name, run.state) for run in left.first_of_each("scenario")]


def _how_far(run: Run, behind: Difference) -> str:
    amount = _amount(run, behind.metric)
    if behind.verdict == "same":
        return f"{amount}, no significant difference: {difference_text(behind)}"
    if behind.verdict == "unknown":
        return f"{amount}, inconclusive: {behind.words}"
    return f"{amount}, {difference_text(behind)}" if behind.ratio else amount


def _of_model(run: Run) -> str:
    model, device, study = (run.text(key) for key in ("model_id", "device", "study_id"))
    named = [f"for {model}"] if model else []
    named += [f"on {device}"] if device else []
    return "".join(f" {each}" for each in (*named, *([f"({study})"] if study else [])))


def _change(share: float) -> str:
    return share_text(share)


def _amount(run: Run, metric: str) -> str:
    entry, value = schema.metric(metric), run.metrics[metric]
    if entry.unit != "-":
        return f"{significant(value)} {entry.unit}"
    return f"{entry.shown.render(value)} {entry.shown.title}" if entry.shown else f"{significant(value)} {metric}"


def _listed(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)
