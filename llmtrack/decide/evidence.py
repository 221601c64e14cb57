"""What a search knows so far, and the answer that follows from it, at any time."""

from __future__ import annotations

import math
from collections.abc import Mapping

from llmtrack.decide.differences import Difference, build_difference, judge
from llmtrack.decide.forecast import Forecast
from llmtrack.decide.goal import Ending, Goal
from llmtrack.decide.predictor import Prior
from llmtrack.decide.proof import USUAL, Proofs
from llmtrack.decide.race import Race
from llmtrack.decide.text_quality import TextQuality
from llmtrack.host.formatting import significant
from llmtrack.metrics import metric

# Safety factor on the predicted time of the final steps.
TIME_MARGIN = 1.1
# Factor on the predicted time of the answer that is reserved while something is tried: more than the answer asks for
# afterwards, since the times it is predicted by move with the machine.
RESERVE = 1.3
# Safety factor on a suggested budget.
_BUDGET_MARGIN = 1.3


class Evidence:
    """The measurements of a search and their conclusion.

    Attributes:
        untried: why each candidate that was never measured was not.
        spent: elapsed seconds.
        ending: `proven`: measured afresh and within the bound; `unproven`: the best so far; `none`: no answer.
        winner: the answer, proven or not.
        equal: candidates not significantly different from it, including it.
        fallback: the best proven candidate if the answer is unproven.
        proven_of: candidate whose fresh comparison with the baseline is the evidence of the result; empty without one.
        missing: which proof is missing.
        needs: budget in seconds that would allow it; 0 if unknown.
    """

    def __init__(self, goal: Goal, priors: Mapping[str, Prior]) -> None:
        base = priors[goal.baseline].model
        models = frozenset(priors[name].model for name in goal.names)
        self.goal = goal
        self.race = Race(goal.names, goal.better, goal.rules, exact=metric(goal.objective).sureness == "exact")
        self.proofs = Proofs(goal.objective, goal.baseline)
        self.quality = TextQuality(base, models, goal.parts, goal.most_perplexity)
        self.forecast = Forecast(goal, self.race, self.quality, self.proofs, priors)
        self.untried: dict[str, str] = {}
        self.spent = 0.0
        self.ending: Ending = "none"
        self.winner: str | None = None
        self.equal: list[str] = []
        self.fallback: str | None = None
        self.proven_of = ""
        self.missing = ""
        self.needs = 0.0
        if goal.most_perplexity is not None:
            for name in goal.names:
                if priors[name].model != base:
                    self.race.hold(name)

    @property
    def fresh(self) -> dict[str, list[float]]:
        """Samples that count of the fresh comparison behind the result, by candidate; empty without one."""
        return self.proofs.samples(self.proven_of)

    @property
    def claim(self) -> Difference | None:
        """The evidence of the result: the fresh comparison with the baseline, or the exact one; None without one."""
        if self.proven_of:
            return self.proofs.claim(self.proven_of)
        base, winner = self.goal.baseline, self.winner
        if not self.race.exact or self.ending != "proven" or winner is None or winner == base:
            return None
        before, after = self.race.samples[base], self.race.samples[winner]
        if not before or not after:
            return None
        return judge(build_difference(self.goal.objective, before[-1], after[-1]))

    @property
    def left_s(self) -> float:
        """Remaining seconds of the budget."""
        return self.goal.seconds - self.spent

    def model_of(self, name: str) -> str:
        """Return the model of a candidate; candidates that share it are scored once."""
        return self.forecast.priors[name].model

    def best_tried(self) -> str | None:
        """Return the best remaining candidate, whether its quality is decided or not."""
        return self.race.leader(self.race.tried)

    def fits(self, cost_s: float, answer_s: float) -> bool:
        """Return whether an action fits into the time and leaves enough for the answer that follows."""
        return TIME_MARGIN * cost_s + RESERVE * answer_s <= self.left_s

    def value_text(self, goodness: float) -> str:
        """Format a goodness as the objective's value with its unit."""
        value = math.exp(goodness if self.goal.better == "higher" else -goodness)
        unit = metric(self.goal.objective).unit
        return f"{significant(value, 3)} {unit}" if unit != "-" else significant(value, 3)

    def judge_whole_text(self, name: str, ratio: float) -> bool:
        """Judge the answer by its perplexity ratio on the whole text; return whether it remains the answer.

        If it is over the bound, what was worse than it is readmitted, and the result determined again.
        """
        model, base = self.model_of(name), self.model_of(self.goal.baseline)
        if model == base or self.quality.judge_whole_text(model, ratio) != "broken":
            return True
        self.race.disqualify(name, self.quality.violation_text(model))
        for other in self.race.alive:
            model = self.model_of(other)
            within = self.quality.within.get(model)
            if within is False:
                self.race.drop(other, self.quality.violation_text(model))
            elif within is None and model != base:
                self.race.hold(other)
        self.conclude()
        return False

    def explain_untried(self) -> None:
        """Say of each remaining candidate without a sample why it was not tried, and the budget it needs."""
        costs = self.forecast.costs
        for name in self.race.alive:
            if self.race.samples[name] or name == self.goal.baseline:
                continue
            first_s, prove_s = self.forecast.first_s(name), self.forecast.prove_s(name)
            conversion_s = costs.slower * costs.conversion_s(self.forecast.priors[name])
            if conversion_s >= 1:
                reason = f"{duration_text(conversion_s)} of conversion"
            else:
                reason = f"{duration_text(first_s + prove_s)} to try and prove it"
            if self.fits(first_s, prove_s):
                reason += f", and not expected to be better by more than {self.goal.rules.margin:.0%}"
            else:
                reason += f": raise the budget to {budget_text(self._budget_with(first_s + prove_s))}"
            self.untried[name] = f"{self.untried[name]}; {reason}" if name in self.untried else reason

    def conclude(self) -> None:
        """Determine the answer, its certainty, and what a larger budget would give."""
        base, margin = self.goal.baseline, math.log1p(self.goal.rules.margin)
        self.winner, self.ending, self.missing, self.needs, self.proven_of = None, "none", "", 0.0, ""
        self.equal = self.race.equal()
        answer, best = self.race.choice(), self.best_tried()
        self.fallback = self.race.leader(
            [name for name in self.proofs if self.proofs.holds(name) and name in self.race.alive]
        )
        if self.fallback is not None:
            self.proven_of = self.fallback
            if answer is None or self.race.goodness(answer) <= self.race.goodness(self.fallback) + margin:
                answer = self.fallback
        if answer is None and best is None:
            return
        # Prefer a better candidate that only lacks its proof over a proven one.
        if best is not None and (answer is None or self.race.goodness(best) > self.race.goodness(answer) + margin):
            self._conclude_unproven(best)
            return
        assert answer is not None
        if answer != base and not self.race.exact and not self.proofs.holds(answer):
            ratio = self.race.ratio(answer, base)
            beats_base = ratio is not None and ratio.low > 1
            if self.proofs.claim(answer) is None or beats_base or base not in self.race.alive:
                self._conclude_unproven(answer)
                return
            # Not significantly different from the baseline: recommend the simpler of both.
            self.proven_of, answer = answer, base
            self.equal = list(dict.fromkeys([base, *self.equal]))
        if self._promising(answer) is not None:
            self._conclude_unproven(answer)
            return
        self.winner, self.ending = answer, "proven"
        # One that measured worse is not equal merely for lack of samples.
        bar = self.race.goodness(answer) - margin if self.race.samples[answer] else -math.inf
        self.equal = [name for name in self.equal if name == answer or self.race.goodness(name) >= bar]
        if answer in self.proofs:
            self.proven_of = answer

    def _conclude_unproven(self, name: str) -> None:
        """Conclude with the best so far, the missing proof, and the budget that would allow it."""
        self.winner, self.ending = name, "unproven"
        if self.fallback == name:
            self.fallback = None
        missing, more_s = [], 0.0
        if name in self.race.held:
            reason = self.quality.unscored.get(self.model_of(name))
            missing.append(reason or "its quality is not proven to be within the bound")
            more_s += self.forecast.decide_s(name)
        if not self.forecast.has_baseline:
            missing.append("the baseline could not be measured")
        elif (claim := self.proofs.claim(name)) is not None and not self.proofs.holds(name):
            if self.fallback is None:
                self.proven_of = name
            missing.append(f"measured afresh against the baseline it is inconclusive ({claim.words})")
            more_s += 2 * self.forecast.duel_s(name, USUAL)
        elif name != self.goal.baseline and not self.race.exact and not self.proofs.holds(name):
            missing.append("it was not measured afresh against the baseline")
            more_s += self.forecast.duel_s(name, USUAL)
        if (promising := self._promising(name)) is not None:
            value = self.value_text(self.forecast.predictions()[promising].mean)
            reason = self.untried[promising].partition(": raise")[0]
            missing.append(f"{promising} promises {value} and was not tried ({reason})")
            more_s += self.forecast.first_s(promising) + self.forecast.prove_s(promising)
        self.missing = "; ".join(missing)
        self.needs = self._budget_with(more_s)

    def _promising(self, answer: str) -> str | None:
        """Return an untried candidate expected to be far better than the answer and within the bound, or None."""
        predictions = self.forecast.predictions()
        bar = self.race.goodness(answer) + math.log(self.goal.rules.far)
        names = [
            name
            for name in self.untried
            if name in predictions and name in self.race.alive and predictions[name].mean > bar
        ]
        if self.goal.most_perplexity is not None:
            names = self.forecast.likely_within(names)
        return max(names, key=lambda name: predictions[name].mean, default=None)

    def _budget_with(self, more_s: float) -> float:
        """Return the budget for more: a new search repeats everything but the conversions."""
        return _BUDGET_MARGIN * (max(self.spent, self.goal.seconds) + more_s)


def budget_text(seconds: float) -> str:
    """Format a budget, rounded up: `90s`, `14m`."""
    if seconds <= 90:
        return f"{max(30, 15 * math.ceil(seconds / 15))}s"
    return f"{math.ceil(seconds / 60)}m"


def duration_text(seconds: float) -> str:
    """Format a duration: `85 s`, `14 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
