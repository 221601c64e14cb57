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
from llmtrack.decide.verdicts import difference_between, doubt, measure_command, score_command, warning_notes
from llmtrack.errors import UsageError
from llmtrack.host.formatting import MIB, plural, significant
from llmtrack.spec.parameter import read_number
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

_SIZE = re.compile(r"\s*((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", re.IGNORECASE)
_MIB_OF = {"": 1 / MIB, "k": 1e3 / MIB, "m": 1e6 / MIB, "g": 1e9 / MIB, "t": 1e12 / MIB}
_MIB_OF |= {"ki": 2**-10, "mi": 1.0, "gi": 2.0**10, "ti": 2.0**20}
_PERCENT = re.compile(r"\s*\+?(\d+(?:\.\d+)?)\s*%\s*")


_NOT_SCORED = "no perplexity was scored"
# Of a text that only the search of `tune` scored, in part.
_RELATIVE = "reference_perplexity_ratio"
# Superlatives by unit.
_SUPERLATIVES = {"tokens/s": "the fastest", "s": "the quickest", "ms": "the quickest", "MiB": "the smallest"}


@dataclass(frozen=True)
class Limits:
    """Maximum perplexity increase over the baseline (0.01: 1 %) and peak memory; None for any."""

    perplexity_increase: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True)
class Recommendation:
    """A choice and its reasons.

    Attributes:
        scenario: to run, or None if none fits or the result is inconclusive.
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
    """A violated limit, and by which share of it; None if the value is unknown."""

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
    candidates = gather_candidates(with_context(runs), objective)
    timed, notes = candidates.runs, list(candidates.notes)
    reference = _reference(candidates, baseline, limits, notes)
    violations = [_violations(run, reference, limits) for run in timed]
    ruled_out = [
        (run.scenario, ", ".join(violation.words for violation in of_run))
        for run, of_run in zip(timed, violations, strict=True)
        if of_run
    ]
    ruled_out += _unfinished(runs, timed)
    within = Runs(run for run, of_run in zip(timed, violations, strict=True) if not of_run)
    ranked = within.by(objective, highest_first=schema.metric(objective).better == "higher")
    if not ranked:
        return Recommendation(None, None, _nothing_fits(timed, violations, limits), tuple(ruled_out), tuple(notes))
    best, *others = ranked
    behind = [(run, difference_between(best, run, objective)) for run in others]
    ruled_out += [(run.name, _behind(run, difference)) for run, difference in behind]
    lead = _lead(best, reference, objective)
    close = [run for run, difference in behind if not difference.conclusive]
    notes += noise_floor_lines(timed, objective)
    weighed = [best, *([] if reference is None else [reference]), *close]
    notes += warning_notes(weighed, len(timed))
    compared = [*([lead] if lead else []), *(difference for _, difference in behind)]
    inconclusive = [difference for difference in compared if difference.verdict not in ("better", "worse", "same")]
    if inconclusive:
        command = measure_command(best, max(difference.repeats_needed for difference in inconclusive))
        sentence = _inconclusive(best, others, reference, objective, inconclusive[0], command)
        return Recommendation(None, None, sentence, tuple(ruled_out), tuple(notes), command)
    if not others and lead is None and _is_single(best, objective):
        notes.append(f"{objective} of {best.name} is a single value: its variation is unknown")
    sentence = _sentence(best, timed, reference, lead, limits, objective)
    return Recommendation(best.scenario, best.run_id, sentence, tuple(ruled_out), tuple(notes))


def parse_size(text: str) -> float:
    """Parse a size such as `2GiB` or `500 MB`; return MiB.

    Raises:
        UsageError: it is invalid or has no unit.
    """
    match = _SIZE.fullmatch(text)
    if match is None or not match[2]:
        raise UsageError(f"{text!r} is not a size: use a number with a unit, such as 2GiB or 500MB")
    return read_number("size", match[1].replace(",", "")) * _MIB_OF[match[2].lower()]


def parse_percent(text: str) -> float:
    """Parse a percentage such as `1%`; return 0.01.

    Raises:
        UsageError: it is invalid.
    """
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is not a percentage: use 1%")
    return read_number("percentage", match[1]) / 100


def _reference(candidates: Candidates, baseline: str | None, limits: Limits, notes: list[str]) -> Run | None:
    """Return the run whose perplexity is the reference, or else the timed baseline."""
    timed, scored = candidates.runs, candidates.scored
    if baseline is not None:
        named = next((run for run in (*timed, *scored) if run.scenario == baseline), None)
        if named is None:
            raise UsageError(f"there is no timed scenario {baseline!r}: use one of {', '.join(timed.scenarios)}")
        return named
    known = timed.where(lambda run: run.has(QUALITY))
    study = candidates.reference.study_id if candidates.reference else ""
    for runs in (known, scored):
        baselines = runs.where(lambda run: run.baseline)
        if baselines:
            # Of several, the one of the study behind the choice.
            return next((run for run in baselines if run.study_id == study != ""), baselines[0])
    if not known:
        return timed.baseline
    lowest = known.by(QUALITY)[0]
    if limits.perplexity_increase is not None:
        notes.append(f"no tracked baseline is among the runs: perplexity is judged against the lowest, {lowest.name}'s")
    return lowest


def _is_single(run: Run, metric: str) -> bool:
    repeats = run.number(schema.spread_key(metric, "n")) or 1
    return schema.metric(metric).sureness != "exact" and repeats < 2


def _violations(run: Run, reference: Run | None, limits: Limits) -> list[Violation]:
    violations = []
    if limits.perplexity_increase is not None:
        increase, most = _increase(run, reference), limits.perplexity_increase
        if increase is None and run.has(QUALITY) and reference is not None:
            violations.append(Violation(f"of the baseline {reference.name} {_NOT_SCORED}"))
        elif increase is None:
            violations.append(Violation(_NOT_SCORED))
        elif increase > most:
            words = f"perplexity {share_text(increase)} is over {share_text(most)}"
            violations.append(Violation(words, (increase - most) / (1 + most)))
    if limits.memory_mib is not None:
        memory = run.number(MEMORY)
        if memory is None:
            violations.append(Violation("no peak memory was measured"))
        elif memory > limits.memory_mib:
            words = f"peak memory {memory:,.0f} MiB is over {significant(limits.memory_mib)} MiB"
            violations.append(Violation(words, memory / max(limits.memory_mib, 1e-9) - 1))
    return violations


def _increase(run: Run, reference: Run | None) -> float | None:
    """Return the relative increase of the perplexity; of a part of the text if the whole was not scored (`tune`)."""
    if reference is None:
        return None
    value, base = run.number(QUALITY), reference.number(QUALITY)
    if (value is None or not base) and run.study_id == reference.study_id:
        value = run.number(_RELATIVE)
        base = reference.number(_RELATIVE) or (1.0 if reference.baseline else None)
    return None if value is None or not base else value / base - 1


def _lead(best: Run, reference: Run | None, objective: str) -> Difference | None:
    """Return the difference of the best from the reference; None if they are the same, or the reference was not timed."""
    if reference is None or reference.run_id == best.run_id or not reference.has(objective):
        return None
    lead = difference_between(reference, best, objective)
    return None if lead.verdict == "missing" else lead


def _unfinished(runs: Runs, timed: Runs) -> list[tuple[str, str]]:
    """Return the unfinished runs of the same experiments with their state."""
    experiments = {run.experiment for run in timed}
    unfinished = runs.where(
        lambda run: not run.is_finished and run.experiment in experiments and run.scenario not in timed.scenarios
    )
    return [(run.name, run.state) for run in unfinished.first_of_each("scenario")]


# --- sentences


def _sentence(
    best: Run, timed: Runs, reference: Run | None, lead: Difference | None, limits: Limits, objective: str
) -> str:
    parts = [_amount(best, objective)]
    if lead is not None and lead.ratio is not None and reference is not None:
        parts[0] += f", {_lead_text(lead, reference.name)}"
    if objective != QUALITY:
        perplexity = _perplexity_text(best, reference)
        if perplexity:
            parts.append(f"perplexity {perplexity}")
        elif perplexity is None and limits.perplexity_increase is None:
            parts.append("unknown perplexity")
    if best.has(MEMORY) and objective != MEMORY:
        parts.append(f"{best.metrics[MEMORY]:,.0f} MiB peak memory")
    among = f"{_best_in(objective)} of {plural(len(timed), 'scenario')}" if len(timed) > 1 else "the only scenario"
    within = " that keeps to the limits" if limits != Limits() else ""
    return f"Run {best.scenario}{doubt(best)}: {among}{within}{_of_model(best)}, with {_enumerated(parts)}."


def _perplexity_text(run: Run, reference: Run | None) -> str | None:
    """Return a perplexity and its increase, as far as known; None without an increase."""
    increase = _increase(run, reference)
    if increase is None or reference is None:
        return None
    value = f"{run.metrics[QUALITY]:.3f}" if run.has(QUALITY) else ""
    if run.run_id == reference.run_id:
        return value
    return f"{value} ({share_text(increase)})" if value else share_text(increase)


def _best_in(metric: str) -> str:
    """Return `the fastest`, with the metric if there are several such speeds."""
    entry = schema.metric(metric)
    best = _SUPERLATIVES.get(entry.unit, "the best")
    if metric == "tokens_per_sec":
        return best
    return f"{best} in {entry.shown.title if entry.shown else metric}"


def _lead_text(lead: Difference, name: str) -> str:
    if not lead.conclusive:
        return f"no significant difference from {name} ({difference_text(lead)})"
    return f"{difference_text(lead)} {'against' if schema.metric(lead.metric).of_text else 'that of'} {name}"


def _inconclusive(
    best: Run, others: Sequence[Run], reference: Run | None, objective: str, difference: Difference, command: str
) -> str:
    rivals = {run.name: run for run in (*([] if reference is None else [reference]), *others)}
    rivals.pop(best.name, None)
    figures = [f"{name} {_amount(run, objective)}" for name, run in rivals.items() if run.has(objective)]
    return (
        f"Nothing can be recommended yet{_of_model(best)}: {best.name} has {_amount(best, objective)} against "
        f"{_enumerated(figures)}: inconclusive ({difference.why}); to settle it run: {command}"
    )


def _nothing_fits(timed: Runs, violations: Sequence[Sequence[Violation]], limits: Limits) -> str:
    requested = []
    if limits.perplexity_increase is not None:
        requested.append(f"perplexity {share_text(limits.perplexity_increase)}")
    if limits.memory_mib is not None:
        requested.append(f"{significant(limits.memory_mib)} MiB of memory")
    none = f"none of {plural(len(timed), 'scenario')} is" if len(timed) > 1 else "the only scenario is not"
    start = f"Nothing fits: {none} within {_enumerated(requested)}"
    # Fewest limits violated first, then the smallest excess; unknown values do not count as near.
    ranked = []
    for index, of_run in enumerate(violations):
        excesses = [violation.excess for violation in of_run if violation.excess is not None]
        if len(excesses) == len(of_run):
            ranked.append((len(of_run), max(excesses), index))
    if not ranked:
        unknown = dict.fromkeys(
            violation.words for of_run in violations for violation in of_run if violation.excess is None
        )
        unscored = next((run for run in timed if not run.has(QUALITY)), timed[0])
        return f"{start}; which is nearest is unknown ({', '.join(unknown)}){_how_to_score(unscored, unknown)}"
    index = min(ranked)[2]
    nearest, words = timed[index], ", ".join(violation.words for violation in violations[index])
    return f"{start}; the nearest is {nearest.name}{_of_model(nearest)} ({words})."


def _how_to_score(run: Run, unknown: Iterable[str]) -> str:
    """Return the end of a sentence without perplexities: the command to score the model."""
    if not any(words.endswith(_NOT_SCORED) for words in unknown):
        return "."
    model = run.text("model_id") or run.text("model")
    return f"; to score it run: {score_command(run)}, then ask again with --model {shlex.quote(model)}"


def _behind(run: Run, difference: Difference) -> str:
    amount = _amount(run, difference.metric)
    if difference.verdict == "same":
        return f"{amount}, no significant difference: {difference_text(difference)}"
    if difference.verdict == "unknown":
        return f"{amount}, inconclusive: {difference.words}"
    return f"{amount}, {difference_text(difference)}" if difference.ratio else amount


def _of_model(run: Run) -> str:
    """Return ` for MODEL on DEVICE (STUDY)`, as far as known."""
    words = {"model_id": " for {}", "device": " on {}", "study_id": " ({})"}
    return "".join(text.format(value) for name, text in words.items() if (value := run.text(name)))


def _amount(run: Run, metric: str) -> str:
    entry, value = schema.metric(metric), run.metrics[metric]
    if entry.unit != "-":
        return f"{significant(value)} {entry.unit}"
    return f"{entry.shown.render(value)} {entry.shown.title}" if entry.shown else f"{significant(value)} {metric}"


def _enumerated(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)
