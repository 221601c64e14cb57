"""A gate for CI: do the candidate's runs keep every rule against the baseline's?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.decide.comparability import why_not
from llmtrack.decide.comparing import Samples, as_runs, samples_of, value_of
from llmtrack.decide.matching import Pair, match
from llmtrack.decide.rules import Check, Rule, check_samples, check_values, decide, parse_rule
from llmtrack.decide.significance import ALPHA
from llmtrack.errors import UsageError
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd

GATE_FAILED = 3


@dataclass(frozen=True, eq=False)
class PairCheck:
    """A rule that was asked of two runs; equal only to itself, since rows of a table have no one truth."""

    pair: Pair
    check: Check


@dataclass(frozen=True)
class GateResult:
    """What a gate found.

    Attributes:
        checks: every rule of every pair that it applies to.
        notes: scenarios that are on one side only.
        strict: whether a check that cannot be told fails the gate too.
    """

    checks: tuple[PairCheck, ...]
    notes: tuple[str, ...] = ()
    strict: bool = False

    @property
    def failing(self) -> tuple[PairCheck, ...]:
        """The checks that fail the gate."""
        bad = ("broken", "cannot tell") if self.strict else ("broken",)
        return tuple(each for each in self.checks if each.check.outcome in bad)

    @property
    def exit_code(self) -> int:
        """0 if the gate passes, else 3."""
        return GATE_FAILED if self.failing else 0


def gate(
    baseline: str | Sequence[str] | pd.DataFrame,
    candidate: str | Sequence[str] | pd.DataFrame,
    fail_if: Sequence[str],
    *,
    experiment: str | None = None,
    across_environments: bool = False,
    strict: bool = False,
    alpha: float = ALPHA,
    tracking_uri: str | None = None,
) -> GateResult:
    """Check rules on tracked runs.

    Args:
        baseline: a selector (see `llmtrack.decide.selectors.select`), several, or rows of `llmtrack.runs`.
        candidate: likewise.
        fail_if: rules such as `tokens_per_sec < -5%`.
        experiment: only runs of this llmtrack or MLflow experiment.
        across_environments: compare speed and memory of different machines or versions too.
        strict: fail also where the samples cannot tell.
        alpha: chance of a false alarm that is accepted, over all checks together.
        tracking_uri: see `llmtrack.tracking.store.resolve_tracking_uri`.

    Raises:
        UsageError: a rule or selector is not understood, nothing can be paired, or a rule applies to nothing: a gate
            that checks nothing must not pass.
        TrackingError: the store cannot be read.
    """
    if not fail_if:
        raise UsageError("a gate needs a rule: --fail-if 'tokens_per_sec < -5%'")
    rules = [parse_rule(text) for text in fail_if]
    baselines = as_runs(baseline, experiment, tracking_uri)
    candidates = as_runs(candidate, experiment, tracking_uri)
    pairs, unmatched = match(baselines, candidates)
    samples = samples_of(pairs, tracking_uri)
    asked = [
        PairCheck(pair, check)
        for rule in rules
        for pair in pairs
        if (check := _check(rule, pair, samples, across_environments)) is not None
    ]
    _refuse_to_check_nothing(rules, asked)
    decided = decide([each.check for each in asked], alpha)
    checks = tuple(PairCheck(each.pair, check) for each, check in zip(asked, decided, strict=True))
    return GateResult(checks, tuple(_notes(baselines, pairs, unmatched)), strict)


def _check(rule: Rule, pair: Pair, samples: Mapping[str, Samples], across_environments: bool) -> Check | None:
    """Return a check, decided or not; None if the rule does not apply to the pair."""
    then, now = value_of(pair.baseline, rule.metric), value_of(pair.candidate, rule.metric)
    if then is None and now is None:
        return None
    if not ask.is_finished(pair.candidate):
        failed = ask.text(pair.candidate, "status") == "FAILED"
        return Check(rule, "broken" if failed else "cannot tell", why=ask.state(pair.candidate))
    if then is None or now is None:
        return Check(
            rule, "cannot tell", why=f"the {'baseline' if then is None else 'candidate'} has no {rule.metric}"
        )
    refused = why_not(pair.baseline, pair.candidate, rule.metric, across_environments)
    if refused:
        return Check(rule, "cannot tell", why=f"not comparable: {refused}")
    sides = [
        samples.get(str(run["run_id"]), {}).get(rule.metric, ()) for run in (pair.baseline, pair.candidate)
    ]
    if all(sides) and min(min(side) for side in sides) > 0:
        return check_samples(rule, *sides)
    return check_values(rule, then, now)


def _refuse_to_check_nothing(rules: Sequence[Rule], asked: Sequence[PairCheck]) -> None:
    for rule in rules:
        whys = [each.check.why for each in asked if each.check.rule == rule]
        if not whys:
            raise UsageError(f"the rule '{rule}' checks nothing: no run has {rule.metric}")
        if all(why.startswith("not comparable") for why in whys):
            remedy = "; --across-environments compares nevertheless" if "environments" in whys[0] else ""
            raise UsageError(f"the rule '{rule}' checks nothing, the runs are {whys[0]}{remedy}")


def _notes(baselines: pd.DataFrame, pairs: Sequence[Pair], unmatched: Sequence[str]) -> list[str]:
    paired = {ask.name(pair.baseline) for pair in pairs}
    there = dict.fromkeys(ask.name(run) for _, run in baselines.iterrows())
    left = [name for name in there if name not in paired]
    notes = [f"{name} is not in the baseline: not checked" for name in unmatched]
    return notes + [f"{name} is only in the baseline: not checked" for name in left]
