"""A gate for CI: check rules on the candidate's runs against the baseline's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from llmtrack.decide.comparability import why_not
from llmtrack.decide.comparing import Selection, as_runs, runs_of_pairs, with_samples_of
from llmtrack.decide.matching import Pair, match
from llmtrack.decide.noise_floor import floor_of, say_floor
from llmtrack.decide.rules import Check, Rule, check_samples, check_values, decide, parse_rules
from llmtrack.decide.significance import ALPHA
from llmtrack.decide.verdicts import tell_pairs
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import CHANCE, read_number
from llmtrack.spec.text_args import texts
from llmtrack.tracked.run import FAILED, Run
from llmtrack.tracked.runs import Runs

NOT_CHECKED, GATE_FAILED = 2, 3


@dataclass(frozen=True)
class PairCheck:
    """A rule checked on two runs."""

    pair: Pair
    check: Check


@dataclass(frozen=True)
class GateResult:
    """Result of a gate.

    Attributes:
        checks: every rule on every pair that it applies to.
        notes: unpaired scenarios, the noise floor, and the warnings of the runs.
        strict: whether inconclusive checks fail the gate.
        unchecked: rules that check nothing, with the reason.
        allow_missing: whether a missing value is accepted.
    """

    checks: tuple[PairCheck, ...]
    notes: tuple[str, ...] = ()
    strict: bool = False
    unchecked: tuple[str, ...] = ()
    allow_missing: bool = False

    @property
    def failing(self) -> tuple[PairCheck, ...]:
        """The checks that fail the gate."""
        bad = ("broken", "inconclusive") if self.strict else ("broken",)
        return tuple(each for each in self.checks if each.check.outcome in bad)

    @property
    def missing(self) -> tuple[PairCheck, ...]:
        """The checks without a value, unless accepted."""
        return () if self.allow_missing else self.of("missing")

    @property
    def exit_code(self) -> int:
        """The worst result: 3 for a broken rule, else 2 for an unchecked one, else 0."""
        if self.failing:
            return GATE_FAILED
        return NOT_CHECKED if self.missing or self.unchecked else 0

    def of(self, outcome: str) -> tuple[PairCheck, ...]:
        """Return the checks with an outcome."""
        return tuple(each for each in self.checks if each.check.outcome == outcome)


def gate(
    baseline: Selection,
    candidate: Selection,
    fail_if: Sequence[str],
    *,
    experiment: str | None = None,
    across_environments: bool = False,
    strict: bool = False,
    allow_missing: bool = False,
    alpha: float = ALPHA,
    tracking_uri: str | None = None,
) -> GateResult:
    """Check rules on tracked runs.

    Args:
        baseline: one or more selectors (see `llmtrack.decide.selectors.select`), or rows from `llmtrack.runs`.
        candidate: likewise.
        fail_if: rules such as `tokens_per_sec < -5%`.
        experiment: restrict to this llmtrack or MLflow experiment.
        across_environments: also compare speed and memory of different machines or versions.
        strict: treat inconclusive as a failure.
        allow_missing: accept values missing on one side (never measured, or NaN).
        alpha: accepted probability of a false alarm over all checks.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        UsageError: a rule or selector is invalid, nothing can be paired, or no rule checks anything: a gate that checks
            nothing must not pass. If only some rules check nothing, the result lists them.
        TrackingError: the store cannot be read.
    """
    if not fail_if:
        raise UsageError("a gate needs a rule: --fail-if 'tokens_per_sec < -5%'")
    alpha = read_number("alpha", alpha, CHANCE)
    rules = parse_rules(texts("rule", fail_if))
    baselines = as_runs(baseline, experiment, tracking_uri)
    candidates = as_runs(candidate, experiment, tracking_uri)
    pairs, unmatched = match(baselines, candidates)
    pairs, same = _measured(pairs, baselines, candidates)
    pairs = with_samples_of(pairs, tracking_uri)
    asked = [
        PairCheck(pair, check)
        for rule in rules
        for pair in pairs
        if (check := _check(rule, pair, across_environments, alpha)) is not None
    ]
    unchecked = tuple(filter(None, (_checks_nothing(rule, asked) for rule in rules)))
    if len(unchecked) == len(rules):
        raise UsageError("; ".join(unchecked))
    decided = decide([each.check for each in asked], alpha)
    checks = tuple(PairCheck(each.pair, check) for each, check in zip(asked, decided, strict=True))
    floors = say_floor(runs_of_pairs(pairs), *dict.fromkeys(rule.metric for rule in rules))
    notes = (*_notes(baselines, pairs, unmatched), *same, *floors, *_doubts(pairs))
    return GateResult(checks, notes, strict, unchecked, allow_missing)


def _measured(pairs: Sequence[Pair], baselines: Runs, candidates: Runs) -> tuple[list[Pair], list[str]]:
    """Return distinct pairs of measured runs; note the scenarios that are covered by an identical one."""
    checked = {_ids(pair) for pair in pairs}
    kept, notes = [], []
    for pair in pairs:
        stands = Pair(_stand_in(pair.baseline, baselines), _stand_in(pair.candidate, candidates))
        if _ids(stands) == _ids(pair):
            kept.append(pair)
        elif stands.baseline.run_id == stands.candidate.run_id or _ids(stands) in checked:
            run = next(run for run in (pair.candidate, pair.baseline) if run.same_as)
            notes.append(f"{run.name} is the same as {run.text('same_as')}: {run.text('reason')}")
        else:
            checked.add(_ids(stands))
            kept.append(stands)
    return kept, notes


def _ids(pair: Pair) -> tuple[str, str]:
    return pair.baseline.run_id, pair.candidate.run_id


def _stand_in(run: Run, runs: Runs) -> Run:
    """Return the run of the identical scenario under this run's name, else the run."""
    if not run.is_same_as:
        return run
    found = runs.finished.where(
        lambda other: other.study_id == run.study_id != "" and other.scenario == run.same_as != ""
    )
    return found[0].standing_for(run.scenario) if found else run


def _check(rule: Rule, pair: Pair, across_environments: bool, alpha: float) -> Check | None:
    """Return an undecided check, or None if the rule does not apply."""
    then, now = (run.number(rule.metric) for run in (pair.baseline, pair.candidate))
    if then is None and now is None:
        return None
    if not pair.candidate.is_finished:
        failed = pair.candidate.status == FAILED
        return Check(rule, "broken" if failed else "missing", why=pair.candidate.state)
    if then is None or now is None:
        lacking, side = (pair.baseline, "baseline") if then is None else (pair.candidate, "candidate")
        return Check(rule, "missing", why=f"the {side} has no {rule.metric}{_why_none(lacking)}")
    refused = why_not(pair.baseline, pair.candidate, rule.metric, across_environments)
    if refused:
        return Check(rule, "inconclusive", why=f"not comparable: {refused}")
    before, after = (run.samples.get(rule.metric, ()) for run in (pair.baseline, pair.candidate))
    if not before or not after or min(*before, *after) <= 0:
        return check_values(rule, then, now)
    check = check_samples(rule, before, after, floor_of(rule.metric, pair.baseline, pair.candidate))
    two = (pair.baseline, pair.candidate)
    (found,) = tell_pairs([two], rule.metric, across_environments=across_environments, alpha=alpha)
    return dataclasses.replace(check, verdict=found.verdict, words=found.words)


def _why_none(run: Run) -> str:
    return f" ({run.text('reason')})" if run.is_same_as else ""


def _checks_nothing(rule: Rule, asked: Sequence[PairCheck]) -> str:
    """Explain why a rule checks nothing; empty if it checks something."""
    whys = [each.check.why for each in asked if each.check.rule == rule]
    if not whys:
        return f"the rule '{rule}' checks nothing: no run has {rule.metric}"
    if all(why.startswith("not comparable") for why in whys):
        remedy = "; --across-environments compares nevertheless" if "environments" in whys[0] else ""
        return f"the rule '{rule}' checks nothing, the runs are {whys[0]}{remedy}"
    return ""


def _notes(baselines: Runs, pairs: Sequence[Pair], unmatched: Sequence[str]) -> list[str]:
    paired = {pair.baseline.name for pair in pairs}
    there = dict.fromkeys(run.name for run in baselines)
    left = [name for name in there if name not in paired]
    notes = [f"{name} is not in the baseline: not checked" for name in unmatched]
    return notes + [f"{name} is only in the baseline: not checked" for name in left]


def _doubts(pairs: Sequence[Pair]) -> list[str]:
    """Return the warnings of the runs, with name and side."""
    sides = [side for pair in pairs for side in (("baseline", pair.baseline), ("candidate", pair.candidate))]
    lines = (f"read with care: {run.name} ({side}): {line}" for side, run in sides for line in run.warnings)
    return list(dict.fromkeys(lines))
