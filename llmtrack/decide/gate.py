"""A gate for CI: check rules such as `tokens_per_sec < -5%` on the candidate's runs against the baseline's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.compare import require_metric
from llmtrack.decide.differences import (
    Difference,
    Verdict,
    below_floor_text,
    comparison_text,
    is_within_floor,
    sampled_ratio,
    too_few_text,
)
from llmtrack.decide.noise_floor import noise_floor_lines, noise_floor_of
from llmtrack.decide.selection import Pair, Selection, as_runs, pair_runs, runs_of_pairs
from llmtrack.decide.significance import ALPHA, Ratio, holm, least_p, mann_whitney_p
from llmtrack.decide.verdicts import difference_between, with_samples_of_pairs
from llmtrack.errors import UsageError
from llmtrack.host.formatting import list_some
from llmtrack.spec.parameter import CHANCE, read_number, require_texts
from llmtrack.tracked.run import FAILED, Run
from llmtrack.tracked.runs import Runs

NOT_CHECKED, GATE_FAILED = 2, 3
"""Exit codes."""

CheckOutcome = Literal["broken", "kept", "inconclusive", "missing"]

_RULE = re.compile(r"\s*([\w./]+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Rule:
    """A forbidden relative change of a metric.

    Attributes:
        below: whether a change below the limit breaks it, not one above.
        limit: relative change, such as -0.05.
    """

    metric: str
    below: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {'<' if self.below else '>'} {100 * self.limit:+g}%"


@dataclass(frozen=True)
class Check:
    """One rule on one pair of runs.

    Attributes:
        outcome: `broken`, `kept`, `inconclusive`, or `missing` if a side has no value.
        change: the measured change with its interval, or empty.
        why: reason of the outcome.
        p_broken: one-sided p-value of a change beyond the limit; None if nothing is tested.
        p_kept: the same of one within.
        sizes: sample counts of baseline and candidate.
        ratio: candidate over baseline.
        floor: noise floor of the runs, as a share.
        verdict: on the two runs (`llmtrack.decide.verdicts`), which no outcome contradicts; None if not determined.
        words: of the verdict.
    """

    rule: Rule
    outcome: CheckOutcome
    change: str = ""
    why: str = ""
    p_broken: float | None = None
    p_kept: float | None = None
    sizes: tuple[int, int] = (1, 1)
    ratio: float = 1.0
    floor: float = 0.0
    verdict: Verdict | None = None
    words: str = ""

    def beyond(self, ratio: float) -> bool:
        """Return whether a ratio is beyond the rule's limit."""
        return ratio < 1 + self.rule.limit if self.rule.below else ratio > 1 + self.rule.limit

    @property
    def contradicts(self) -> bool:
        """Whether the outcome implies a difference between runs without a significant one."""
        if self.verdict in (None, "better", "worse", "changed") or self.outcome not in ("broken", "kept"):
            return False
        return (self.outcome == "broken") != self.beyond(1.0)


def parse_rule(text: str) -> Rule:
    """Parse a rule: a metric, `<` or `>`, and a change in percent.

    Raises:
        UsageError: it is invalid, or the metric is unknown.
    """
    match = _RULE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"invalid rule {text!r}: give a metric, < or >, and a change in percent, "
            "such as 'tokens_per_sec < -5%' or 'perplexity > +1%'"
        )
    rule = Rule(require_metric(match[1]), match[2] == "<", read_number("change", match[3]) / 100)
    if rule.below and rule.limit <= -1:
        raise UsageError(f"invalid rule {text!r}: nothing falls by 100 % or more, so that it would never fire")
    return rule


def parse_rules(texts: Sequence[str]) -> list[Rule]:
    """Parse rules, dropping duplicates.

    Raises:
        UsageError: some are invalid; the message names them.
    """
    rules, mistakes = [], []
    for text in texts:
        try:
            rules.append(parse_rule(text))
        except UsageError as error:
            mistakes.append(str(error))
    if mistakes:
        raise UsageError("; ".join(mistakes))
    return list(dict.fromkeys(rules))


def check_samples(rule: Rule, baseline: Sequence[float], candidate: Sequence[float], floor: float = 0.0) -> Check:
    """Build a check from positive raw samples, without an outcome; see `decide_checks`.

    The baseline's samples are scaled to the limit and compared with the candidate's, one-sided (Mann-Whitney), in both
    directions. The noise floor is a share.
    """
    ratio = sampled_ratio(rule.metric, baseline, candidate)
    at_limit = [(1 + rule.limit) * value for value in baseline]
    less, greater = (mann_whitney_p(at_limit, candidate, side) for side in ("less", "greater"))
    p_broken, p_kept = (less, greater) if rule.below else (greater, less)
    sizes = (len(baseline), len(candidate))
    change = comparison_text(rule.metric, ratio, interval=max(sizes) > 1)
    return Check(rule, "inconclusive", change, "", p_broken, p_kept, sizes, ratio.value, floor)


def check_values(rule: Rule, baseline: float, candidate: float) -> Check:
    """Check one value each."""
    if not baseline:
        return Check(rule, "inconclusive", why="the baseline is 0: no ratio")
    entry, ratio = schema.metric(rule.metric), candidate / baseline
    change = comparison_text(rule.metric, Ratio(ratio, ratio, ratio), interval=False)
    if entry.sureness != "exact":
        return Check(rule, "inconclusive", change, "one value each: noise unknown")
    tolerance = f"{100 * entry.tolerance:g} %"
    beyond = Check(rule, "kept").beyond(ratio)
    if beyond and abs(ratio - 1) <= entry.tolerance:
        return Check(rule, "kept", change, f"within the tolerance of {tolerance}")
    why = f"a single value is conclusive (tolerance {tolerance})"
    return Check(rule, "broken" if beyond else "kept", change, why)


def check_interval(rule: Rule, difference: Difference, floor: float = 0.0) -> Check:
    """Check the interval of a difference whose raw samples cannot be read: decided if both ends are on one side."""
    ratio = difference.ratio
    assert ratio is not None
    change = comparison_text(rule.metric, ratio, interval=True)
    sizes = difference.n_baseline, difference.n_candidate
    check = Check(rule, "inconclusive", change, "", sizes=sizes, ratio=ratio.value, floor=floor)
    if difference.repeats_needed:
        return dataclasses.replace(check, why=difference.words)
    if check.beyond(ratio.low) != check.beyond(ratio.high):
        return dataclasses.replace(check, why="the tracked intervals include the limit: measure more repeats")
    return _within_floor_or(check, "broken" if check.beyond(ratio.value) else "kept", "by the tracked intervals")


def decide_checks(checks: Sequence[Check], alpha: float = ALPHA) -> list[Check]:
    """Decide the checks with samples, keeping the order and the other checks.

    Broken means beyond the limit with a p-value below alpha, corrected for the number of checks (Holm); kept means
    within the limit with a p-value below alpha. Otherwise it is inconclusive; also if the noise floor covers the
    difference, or if the outcome would contradict the verdict on the two runs.
    """
    p_values = [check.p_broken for check in checks if check.p_broken is not None]
    adjusted = iter(holm(p_values))
    decided = [
        check if check.p_broken is None else _decide_check(check, next(adjusted), len(p_values), alpha)
        for check in checks
    ]
    return [
        dataclasses.replace(check, outcome="inconclusive", why=check.words) if check.contradicts else check
        for check in decided
    ]


def _decide_check(check: Check, p_broken: float, tests: int, alpha: float) -> Check:
    if p_broken < alpha:
        return _within_floor_or(check, "broken", f"p = {p_broken:.2g}")
    if check.p_kept is not None and check.p_kept < alpha:
        return _within_floor_or(check, "kept", f"p = {check.p_kept:.2g}")
    # One-sided: half of the smallest two-sided p-value.
    if least_p(*check.sizes) / 2 * tests >= alpha:
        return dataclasses.replace(check, why=too_few_text(*check.sizes, tests, alpha, sides=1))
    return dataclasses.replace(check, why="the noise includes the limit: measure more repeats")


def _within_floor_or(check: Check, outcome: CheckOutcome, evidence: str) -> Check:
    """Return the check with its outcome, or inconclusive if the noise floor covers the difference from the limit."""
    if outcome == "broken":
        if is_within_floor(check.ratio, check.floor):
            return dataclasses.replace(check, why=f"beyond the limit, but {below_floor_text(check.floor)}")
        return dataclasses.replace(check, outcome=outcome, why=f"beyond the limit ({evidence})")
    within = "within" if check.rule.below == (check.rule.limit < 0) else "on the right side of"
    floor = 1 + check.floor
    if check.beyond(check.ratio / floor if check.rule.below else check.ratio * floor):
        why = f"{within} the limit, but nearer to it than equal settings differed here, {check.floor:.0%}"
        return dataclasses.replace(check, why=why)
    return dataclasses.replace(check, outcome=outcome, why=f"{within} the limit ({evidence})")


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
        failing = ("broken", "inconclusive") if self.strict else ("broken",)
        return tuple(checked for checked in self.checks if checked.check.outcome in failing)

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
        return tuple(checked for checked in self.checks if checked.check.outcome == outcome)


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
        baseline: one or more selectors (see `llmtrack.decide.selection.select`), or rows from `llmtrack.runs`.
        candidate: likewise.
        fail_if: rules such as `tokens_per_sec < -5%`.
        experiment: restrict to this llmtrack or MLflow experiment.
        across_environments: also compare speed and memory of different machines or versions.
        strict: treat inconclusive as a failure.
        allow_missing: accept values missing on one side (never measured, or NaN).
        alpha: accepted probability of a false alarm over all checks.
        tracking_uri: see `llmtrack.tracking.uri.resolve_tracking_uri`.

    Raises:
        UsageError: a rule or selector is invalid, nothing can be paired, or no rule checks anything: a gate that checks
            nothing must not pass. If only some rules check nothing, the result lists them.
        TrackingError: the store cannot be read.
    """
    if not fail_if:
        raise UsageError("a gate needs a rule: --fail-if 'tokens_per_sec < -5%'")
    alpha = read_number("alpha", alpha, CHANCE)
    rules = parse_rules(require_texts("rule", fail_if))
    baselines = as_runs(baseline, experiment, tracking_uri)
    candidates = as_runs(candidate, experiment, tracking_uri)
    pairs, unmatched = pair_runs(baselines, candidates)
    pairs, same_as_notes = _distinct_pairs(pairs, baselines, candidates)
    pairs = with_samples_of_pairs(pairs, tracking_uri)
    undecided = [
        PairCheck(pair, check)
        for rule in rules
        for pair in pairs
        if (check := _check(rule, pair, across_environments, alpha)) is not None
    ]
    unchecked = tuple(filter(None, (_why_unchecked(rule, undecided) for rule in rules)))
    if len(unchecked) == len(rules):
        raise UsageError("; ".join(unchecked))
    decided = decide_checks([pair_check.check for pair_check in undecided], alpha)
    checks = tuple(PairCheck(pair_check.pair, check) for pair_check, check in zip(undecided, decided, strict=True))
    floors = noise_floor_lines(runs_of_pairs(pairs), *dict.fromkeys(rule.metric for rule in rules))
    unread = _unread_notes(pairs, rules)
    notes = (*_unpaired_notes(baselines, pairs, unmatched), *same_as_notes, *unread, *floors, *_warning_notes(pairs))
    return GateResult(checks, notes, strict, unchecked, allow_missing)


def _distinct_pairs(pairs: Sequence[Pair], baselines: Runs, candidates: Runs) -> tuple[list[Pair], list[str]]:
    """Return distinct pairs of measured runs; note the scenarios that are covered by an identical one."""
    checked = {_ids(pair) for pair in pairs}
    distinct, notes = [], []
    for pair in pairs:
        measured = Pair(_measured_run(pair.baseline, baselines), _measured_run(pair.candidate, candidates))
        if _ids(measured) == _ids(pair):
            distinct.append(pair)
        elif measured.baseline.run_id == measured.candidate.run_id or _ids(measured) in checked:
            run = next(run for run in (pair.candidate, pair.baseline) if run.same_as)
            notes.append(f"{run.name} is the same as {run.text('same_as')}: {run.text('reason')}")
        else:
            checked.add(_ids(measured))
            distinct.append(measured)
    return distinct, notes


def _ids(pair: Pair) -> tuple[str, str]:
    return pair.baseline.run_id, pair.candidate.run_id


def _measured_run(run: Run, runs: Runs) -> Run:
    """Return the run of the identical scenario under this run's name, else the run."""
    if not run.is_same_as:
        return run
    identical = runs.finished.where(
        lambda other: other.study_id == run.study_id != "" and other.scenario == run.same_as != ""
    )
    return identical[0].as_scenario(run.scenario) if identical else run


def _check(rule: Rule, pair: Pair, across_environments: bool, alpha: float) -> Check | None:
    """Return an undecided check, or None if the rule does not apply."""
    baseline, candidate = pair.baseline, pair.candidate
    before, after = baseline.number(rule.metric), candidate.number(rule.metric)
    if before is None and after is None:
        return None
    if not candidate.is_finished:
        return Check(rule, "broken" if candidate.status == FAILED else "missing", why=candidate.state)
    if before is None or after is None:
        run, side = (baseline, "baseline") if before is None else (candidate, "candidate")
        reason = f" ({run.text('reason')})" if run.is_same_as else ""
        return Check(rule, "missing", why=f"the {side} has no {rule.metric}{reason}")
    if reason := why_not_comparable(baseline, candidate, rule.metric, across_environments):
        return Check(rule, "inconclusive", why=f"not comparable: {reason}")
    samples = baseline.samples.get(rule.metric, ()), candidate.samples.get(rule.metric, ())
    difference = difference_between(
        baseline, candidate, rule.metric, across_environments=across_environments, alpha=alpha
    )
    floor = noise_floor_of(rule.metric, baseline, candidate)
    if all(samples) and min(map(min, samples)) > 0:
        check = check_samples(rule, *samples, floor)
    elif difference.repeated and difference.ratio is not None:
        check = check_interval(rule, difference, floor)
    else:
        return check_values(rule, before, after)
    return dataclasses.replace(check, verdict=difference.verdict, words=difference.words)


def _why_unchecked(rule: Rule, checks: Sequence[PairCheck]) -> str:
    """Explain why a rule checks nothing; empty if it checks something."""
    reasons = [pair_check.check.why for pair_check in checks if pair_check.check.rule == rule]
    if not reasons:
        return f"the rule '{rule}' checks nothing: no run has {rule.metric}"
    if all(reason.startswith("not comparable") for reason in reasons):
        remedy = "; --across-environments compares nevertheless" if "environments" in reasons[0] else ""
        return f"the rule '{rule}' checks nothing, the runs are {reasons[0]}{remedy}"
    return ""


def _unpaired_notes(baselines: Runs, pairs: Sequence[Pair], unmatched: Sequence[str]) -> list[str]:
    paired = {pair.baseline.name for pair in pairs}
    unpaired = dict.fromkeys(run.name for run in baselines if run.name not in paired)
    notes = [f"{name} is not in the baseline: not checked" for name in unmatched]
    return notes + [f"{name} is only in the baseline: not checked" for name in unpaired]


def _unread_notes(pairs: Sequence[Pair], rules: Sequence[Rule]) -> list[str]:
    """Name the repeated runs whose raw samples cannot be read."""
    metrics = {rule.metric for rule in rules}
    unread = [run.name for run in runs_of_pairs(pairs) if not run.samples and any(map(run.spread, metrics))]
    return [f"raw samples cannot be read of {list_some(unread)}: the tracked intervals count"] if unread else []


def _warning_notes(pairs: Sequence[Pair]) -> list[str]:
    sides = [side for pair in pairs for side in (("baseline", pair.baseline), ("candidate", pair.candidate))]
    lines = (f"read with care: {run.name} ({side}): {line}" for side, run in sides for line in run.warnings)
    return list(dict.fromkeys(lines))
