"""Rules of a gate, such as `tokens_per_sec < -5%`: broken, kept or inconclusive."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmtrack import metrics as schema
from llmtrack.decide.comparing import known_metric
from llmtrack.decide.differences import Verdict, comparison_text, sampled_ratio, too_few
from llmtrack.decide.noise_floor import floor_in_words, is_within
from llmtrack.decide.significance import ALPHA, Ratio, holm, least_p, mann_whitney_p
from llmtrack.errors import UsageError
from llmtrack.spec.parameter import read_number

Ruling = Literal["broken", "kept", "inconclusive", "missing"]

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
    outcome: Ruling
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
    return Rule(known_metric(found[1]), found[2] == "<", read_number("change", found[3]) / 100)


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
    """Build a check from raw samples, without an outcome; see `decide`.

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


def decide(checks: Sequence[Check], alpha: float = ALPHA) -> list[Check]:
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
    if p_broken < alpha and is_within(check.ratio, check.floor):
        return dataclasses.replace(check, why=f"beyond the limit, but {floor_in_words(check.floor)}")
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
        return dataclasses.replace(check, why=too_few(*check.sizes, tests, alpha, sides=1))
    return dataclasses.replace(check, why="the noise includes the limit: measure more repeats")
