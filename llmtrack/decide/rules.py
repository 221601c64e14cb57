"""Rules of a gate, such as `tokens_per_sec < -5%`: is one broken, kept, or is that inconclusive?"""

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
    """What must not happen: a metric's relative change beyond a limit.

    Attributes:
        metric: name of the metric.
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
    """One rule, asked of one pair of runs.

    Attributes:
        rule: the rule.
        outcome: `broken`, `kept`, `inconclusive`, or `missing` where a side has no figure.
        change: the measured change with its interval, or empty.
        why: the reason of the outcome.
        p_broken: one-sided p-value of a change beyond the limit; None where nothing is tested.
        p_kept: the same of one within.
        sizes: numbers of samples.
        ratio: the measured one.
        floor: by which share equal settings differed where the runs were measured.
        verdict: what `llmtrack.decide.verdicts` says of the two runs, which no ruling contradicts; None where it was not asked.
        words: the same in words.
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
        """Whether the outcome rests on a difference of two runs that are not known to differ."""
        if self.verdict in (None, "better", "worse", "changed") or self.outcome not in ("broken", "kept"):
            return False
        return (self.outcome == "broken") != self.beyond(1.0)


def parse_rule(text: str) -> Rule:
    """Read a rule: a metric, `<` or `>`, and a change in percent.

    Raises:
        UsageError: it is not understood, or no such metric is known.
    """
    found = _RULE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"the rule {text!r} is not understood: name a metric, < or >, and a change in percent, "
            "such as 'tokens_per_sec < -5%' or 'perplexity > +1%'"
        )
    return Rule(known_metric(found[1]), found[2] == "<", read_number("change", found[3]) / 100)


def parse_rules(texts: Sequence[str]) -> list[Rule]:
    """Read several rules, equal ones once.

    Raises:
        UsageError: any of them is not understood; the message names all of those.
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
    """Return a check of raw samples, not decided yet: see `decide`.

    The baseline's samples are moved to the limit and compared with the candidate's, one-sided (Mann-Whitney): is the
    candidate beyond it, or within?

    Args:
        rule: the rule.
        baseline: samples, all above 0.
        candidate: likewise.
        floor: by which share equal settings differed where they were measured.
    """
    ratio = sampled_ratio(rule.metric, baseline, candidate)
    moved = [(1 + rule.limit) * value for value in baseline]
    less, greater = (mann_whitney_p(moved, candidate, side) for side in ("less", "greater"))
    p_broken, p_kept = (less, greater) if rule.below else (greater, less)
    sizes = (len(baseline), len(candidate))
    change = comparison_text(rule.metric, ratio, interval=max(sizes) > 1)
    return Check(rule, "inconclusive", change, "", p_broken, p_kept, sizes, ratio.value, floor)


def check_values(rule: Rule, baseline: float, candidate: float) -> Check:
    """Return the check of one value each."""
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
    why = f"one value tells (tolerance {100 * tolerance:g} %)"
    return Check(rule, "broken" if beyond else "kept", change, why)


def decide(checks: Sequence[Check], alpha: float = ALPHA) -> list[Check]:
    """Decide the checks of samples, in the same order; the others stay as they are.

    Broken is what is beyond the limit with a p-value below alpha, corrected for the number of checks (Holm); kept
    what is within the limit with a p-value below alpha. In between it is inconclusive, as where equal settings
    differed by as much, and where it would take a difference that the verdict on the two runs does not know of.
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
    # One side: half of the two-sided least.
    if least_p(*check.sizes) / 2 * tests >= alpha:
        return dataclasses.replace(check, why=too_few(*check.sizes, tests, alpha, sides=1))
    return dataclasses.replace(check, why="the limit is within the noise: measure more repeats")
