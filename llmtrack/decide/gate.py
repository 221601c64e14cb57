"""A gate for CI: check rules such as `tokens_per_sec < -5%` on the candidate's runs against the baseline's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.compare import require_metric, runs_of_pairs, with_samples_of_pairs
from llmtrack.decide.differences import (
    ALPHA,
    Ratio,
    Verdict,
    below_floor_text,
    comparison_text,
    holm,
    is_within_floor,
    least_p,
    mann_whitney_p,
    sampled_ratio,
    too_few_text,
)
from llmtrack.decide.noise_floor import noise_floor_lines, noise_floor_of
from llmtrack.decide.selection import Pair, Selection, as_runs, pair_runs
from llmtrack.decide.verdicts import pairwise_differences
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import CHANCE, read_number, require_texts
from llmtrack.tracked.run import FAILED, Run
from llmtrack.tracked.runs import Runs

CheckOutcome = Literal["broken", "kept", "inconclusive", "missing"]

_RULE = re.compile(r"\s*([\w./]+)\s*([<>])\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Rule:
    """A forbidden relative change of a metric.

    Attributes:
        below: whether a change below the limit breaks it; otherwise one above.
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
        sizes: sample counts.
        ratio: the measured ratio.
        floor: noise floor of the runs.
        verdict: verdict of `llmtrack.decide.verdicts` on the two runs, which no outcome contradicts; None if not
            determined.
        words: its explanation.
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
    found = _RULE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"invalid rule {text!r}: give a metric, < or >, and a change in percent, "
            "such as 'tokens_per_sec < -5%' or 'perplexity > +1%'"
        )
    return Rule(require_metric(found[1]), found[2] == "<", read_number("change", found[3]) / 100)


def parse_rules(texts: Sequence[str]) -> list[Rule]:
    """Parse rules, dropping duplicates.

    Raises:
        UsageError: any is invalid; the message names all of those.
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
    """Build a check from raw samples, without an outcome; see `decide_checks`.

    The baseline's samples are shifted to the limit and compared with the candidate's, one-sided (Mann-Whitney), in both
    directions.

    Args:
        baseline: positive samples.
        candidate: likewise.
        floor: noise floor of the runs.
    """
    ratio = sampled_ratio(rule.metric, baseline, candidate)
    moved = [(1 + rule.limit) * value for value in baseline]
    less, greater = (mann_whitney_p(moved, candidate, side) for side in ("less", "greater"))
    p_broken, p_kept = (less, greater) if rule.below else (greater, less)
    sizes = (len(baseline), len(candidate))
    change = comparison_text(rule.metric, ratio, interval=max(sizes) > 1)
    return Check(rule, "inconclusive", change, "", p_broken, p_kept, sizes, ratio.value, floor)


def check_values(rule: Rule, baseline: float, candidate: float) -> Check:
    """Check one value each."""
    if not baseline:
        return Check(rule, "inconclusive", why="the baseline is 0: no ratio")
    ratio = candidate / baseline
    change = comparison_text(rule.metric, Ratio(ratio, ratio, ratio), interval=False)
    if schema.metric(rule.metric).sureness != "exact":
        return Check(rule, "inconclusive", change, "one value each: noise unknown")
    relative = candidate / baseline - 1
    beyond = Check(rule, "kept").beyond(candidate / baseline)
    tolerance = schema.metric(rule.metric).tolerance
    if beyond and abs(relative) <= tolerance:
        return Check(rule, "kept", change, f"within the tolerance of {100 * tolerance:g} %")
    why = f"a single value is conclusive (tolerance {100 * tolerance:g} %)"
    return Check(rule, "broken" if beyond else "kept", change, why)


def decide_checks(checks: Sequence[Check], alpha: float = ALPHA) -> list[Check]:
    """Decide the checks with samples, keeping the order and the other checks.

    Broken means beyond the limit with a p-value below alpha, corrected for the number of checks (Holm); kept means
    within the limit with a p-value below alpha. Otherwise it is inconclusive; also if the noise floor covers the
    difference, or if the outcome would contradict the verdict on the two runs.
    """
    tested = [each.p_broken for each in checks if each.p_broken is not None]
    adjusted = iter(holm(tested))
    decided = (each if each.p_broken is None else _decided(each, next(adjusted), len(tested), alpha) for each in checks)
    return [
        dataclasses.replace(each, outcome="inconclusive", why=each.words) if each.contradicts else each
        for each in decided
    ]


def _decided(check: Check, p_broken: float, tests: int, alpha: float) -> Check:
    within = "within" if check.rule.below == (check.rule.limit < 0) else "on the right side of"
    if p_broken < alpha and is_within_floor(check.ratio, check.floor):
        return dataclasses.replace(check, why=f"beyond the limit, but {below_floor_text(check.floor)}")
    if p_broken < alpha:
        return dataclasses.replace(check, outcome="broken", why=f"beyond the limit (p = {p_broken:.2g})")
    if check.p_kept is not None and check.p_kept < alpha:
        room = 1 + check.floor
        if check.beyond(check.ratio / room if check.rule.below else check.ratio * room):
            return dataclasses.replace(
                check,
                why=f"{within} the limit, but nearer to it than equal settings differed here, {check.floor:.0%}",
            )
        return dataclasses.replace(check, outcome="kept", why=f"{within} the limit (p = {check.p_kept:.2g})")
    # One-sided: half of the smallest two-sided p-value.
    if least_p(*check.sizes) / 2 * tests >= alpha:
        return dataclasses.replace(check, why=too_few_text(*check.sizes, tests, alpha, sides=1))
    return dataclasses.replace(check, why="the noise includes the limit: measure more repeats")


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
        baseline: one or more selectors (see `llmtrack.decide.selection.select`), or rows from `llmtrack.runs`.
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
    rules = parse_rules(require_texts("rule", fail_if))
    baselines = as_runs(baseline, experiment, tracking_uri)
    candidates = as_runs(candidate, experiment, tracking_uri)
    pairs, unmatched = pair_runs(baselines, candidates)
    pairs, same = _measured(pairs, baselines, candidates)
    pairs = with_samples_of_pairs(pairs, tracking_uri)
    asked = [
        PairCheck(pair, check)
        for rule in rules
        for pair in pairs
        if (check := _check(rule, pair, across_environments, alpha)) is not None
    ]
    unchecked = tuple(filter(None, (_checks_nothing(rule, asked) for rule in rules)))
    if len(unchecked) == len(rules):
        raise UsageError("; ".join(unchecked))
    decided = decide_checks([each.check for each in asked], alpha)
    checks = tuple(PairCheck(each.pair, check) for each, check in zip(asked, decided, strict=True))
    floors = noise_floor_lines(runs_of_pairs(pairs), *dict.fromkeys(rule.metric for rule in rules))
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
    return found[0].as_scenario(run.scenario) if found else run


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
    refused = why_not_comparable(pair.baseline, pair.candidate, rule.metric, across_environments)
    if refused:
        return Check(rule, "inconclusive", why=f"not comparable: {refused}")
    before, after = (run.samples.get(rule.metric, ()) for run in (pair.baseline, pair.candidate))
    if not before or not after or min(*before, *after) <= 0:
        return check_values(rule, then, now)
    check = check_samples(rule, before, after, noise_floor_of(rule.metric, pair.baseline, pair.candidate))
    two = (pair.baseline, pair.candidate)
    (found,) = pairwise_differences([two], rule.metric, across_environments=across_environments, alpha=alpha)
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
