"""Search for the best way to run a model within a time budget; an answer is available at any time.

The search is independent of engines and MLflow: a `Measurer` acts, and everything follows from its answers, so that an
interrupted search can be replayed. The next action is the first of these that fits into the remaining time:

1. measure the baseline, then the three most promising candidates (`promise`), each beside the leader (`race`);
2. score a candidate that is better than the leader until its quality is decided (`text_quality`); one beyond the bound is
eliminated;
3. try the next most promising candidate while its proof would still fit, or even if not when it promises far more than
the leader;
4. take further samples of the candidates among which the answer is open;
5. prove the answer: measure it afresh against the baseline (`proof`);
6. try further candidates although there is no time left to prove them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from llmtrack.decide.differences import Difference, build_difference, judge
from llmtrack.decide.forecast import Forecast
from llmtrack.decide.goal import Ending, Goal, Measurer, SearchState, Trial
from llmtrack.decide.predictor import keeps_quality
from llmtrack.decide.proof import MOST, USUAL, Proofs, Sample, duel
from llmtrack.decide.race import Race
from llmtrack.decide.text_quality import TextQuality
from llmtrack.host.formatting import significant
from llmtrack.metrics import metric

FIRST = 3
"""Candidates to try before any is scored."""
# Safety factor on the predicted time of the final steps.
_ROOM = 1.1
# Factor on the predicted time of the answer that is kept while something is tried: more than the answer asks for afterwards,
# since the times it is predicted by move with the machine.
_KEPT = 1.3
# Factor by which a single value must exceed a limit to break it.
_FAR = 1.5
# Time limit of a first sample: a multiple of the prediction, at least this many seconds or this share of the remaining
# time. A candidate that timed out is tried once more with all of the remaining time, if that is enough.
_PATIENCE, _LEAST_PATIENCE, _FIRST_SHARE = 3.0, 30.0, 0.2
_ATTEMPTS = 2
# Safety factor on a suggested budget.
_MORE = 1.3
# Failed candidates of a runtime after which the others are dropped.
_FAILURES = 2

CANNOT_WIN = "cannot win"
"""Prefix of the reason of a candidate eliminated by its prediction."""


@dataclass
class Tuning:
    """The search and its state.

    Attributes:
        goal: what to search for.
        measurer: measures and scores.
        race: samples and eliminations.
        quality: perplexity of each model relative to the baseline's.
        proofs: fresh comparisons of candidates with the baseline.
        forecast: predictions of candidates and times.
        proven_of: candidate whose fresh comparison with the baseline is the evidence of the result; empty without one.
        ending: `proven`: measured afresh and within the bound; `unproven`: the best so far; `none`: no answer.
        winner: the answer, proven or not.
        equal: candidates not significantly different from it, including it.
        fallback: the best proven candidate if the answer is unproven.
        missing: which proof is missing.
        needs: budget in seconds that would allow it; 0 if unknown.
        untried: why each candidate that was never measured was not.
        spent: elapsed seconds.
    """

    goal: Goal
    measurer: Measurer
    race: Race = field(init=False)
    quality: TextQuality = field(init=False)
    proofs: Proofs = field(init=False)
    forecast: Forecast = field(init=False)
    proven_of: str = field(init=False, default="")
    ending: Ending = field(init=False, default="none")
    winner: str | None = field(init=False, default=None)
    equal: list[str] = field(init=False, default_factory=list)
    fallback: str | None = field(init=False, default=None)
    missing: str = field(init=False, default="")
    needs: float = field(init=False, default=0.0)
    untried: dict[str, str] = field(init=False, default_factory=dict)
    spent: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        task = self.goal
        exact = metric(task.objective).sureness == "exact"
        self.race = Race(task.names, task.better, task.rules, exact)
        self.proofs = Proofs(task.objective, task.baseline)
        priors = dict(self.measurer.priors({}))
        models = frozenset(priors[name].model for name in task.names)
        self.quality = TextQuality(priors[task.baseline].model, models, task.parts, task.most_perplexity)
        self.forecast = Forecast(task, self.race, self.quality, self.proofs, priors)
        self._over: dict[str, dict[str, list[float]]] = {name: {} for name in task.names}
        self._attempts: dict[str, int] = {}
        self._failed: dict[str, list[str]] = {}
        self._rounds = 0
        # Whether the machine was calm during the last sample.
        self._calm = True
        self._told: set[str] = set()
        if task.most_perplexity is not None:
            for name in task.names:
                if self.model_of(name) != self.model_of(task.baseline):
                    self.race.hold(name)

    def run(self) -> None:
        """Search until nothing is left to do or the time is up; the attributes hold the result."""
        self._measure_baseline()
        while self._step():
            self._tell_dropped()
        for name in self.race.alive:
            if not self.race.samples[name] and name != self.goal.baseline:
                self.untried[name] = self._why_not_tried(name)
        self._conclude()
        self._tell_dropped()

    # --- next action

    def _step(self) -> bool:
        """Take the next action; return whether there was one."""
        self._drop_hopeless()
        if self._compare_calmly():
            return True
        if len(self._attempts) < FIRST and self._try_next(with_proof=True):
            return True
        return (
            self._score_challenger()
            or self._try_next(with_proof=True)
            or self._take_round()
            or self._prove()
            or self._try_next(with_proof=False)
        )

    def _measure_baseline(self) -> None:
        """Measure the baseline regardless of the time: everything is relative to it."""
        name = self.goal.baseline
        self._show(f"measuring the baseline {name}")
        self.race.begin_block()
        seen = self._sample(name, self._left(), first=True)
        if seen is None:
            return
        self.forecast.measured_baseline(seen.values, self.measurer.priors(seen.values))

    def _try_next(self, with_proof: bool) -> bool:
        """Try the most promising candidate that fits into the time; timed-out ones come last."""
        top = self._top()
        kept = 0.0
        if top is not None and with_proof:
            # Any candidate that is better than the leader may be beyond the bound.
            kept = self.forecast.answer_s({top, self.race.choice() or top}, self._challengers())
        names = self._to_try()
        given_up = [name for name in names if name in self._attempts]
        afresh = [name for name in names if name not in self._attempts]
        best = self._most_promising(afresh, with_proof, kept) or self._most_promising(given_up, with_proof, kept)
        if best is None:
            return False
        expected = self.forecast.first_s(best)
        room = max(self._left() - _KEPT * kept, min(_ROOM * expected, self._left()))
        if best in afresh:
            room = min(room, max(_PATIENCE * expected, _LEAST_PATIENCE, _FIRST_SHARE * self._left()))
        self._try(best, room)
        return True

    def _most_promising(self, names: Sequence[str], with_proof: bool, kept: float) -> str | None:
        """Return the candidate with the largest expected improvement per second that fits into the time, or None.

        Args:
            with_proof: whether its proof must fit, too, unless it promises far more than the best so far.
            kept: seconds reserved for an answer among the tried candidates.
        """
        predictions, decided, over = self.forecast.predictions(), self.forecast.decided(), self.forecast.bar()
        promises = {}
        undecided = {self.model_of(name) for name in self._challengers()}
        for name in names:
            if self.model_of(name) in undecided:
                continue  # The same model: decide first whether it is within the bound.
            cost = self.forecast.first_s(name)
            far = name in predictions and predictions[name].mean > over + math.log(self.goal.rules.far)
            after = max(kept, self.forecast.prove_s(name)) if with_proof and not far else 0.0
            if not self._fits(cost, after):
                continue
            gain = predictions[name].improvement(over) if name in predictions else 1.0
            gain *= keeps_quality(self.forecast.priors[name], decided)
            if gain > 0 and not (self.forecast.is_long(name) and gain < math.log1p(self.goal.rules.margin)):
                promises[name] = gain / cost
        return max(promises, key=promises.__getitem__, default=None)

    def _try(self, name: str, seconds: float) -> None:
        """Measure a candidate for the first time, beside the best so far."""
        self._show(f"trying {name}")
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self.race.begin_block()
        if self._sample(name, seconds, first=True) is None:
            return
        leader = self.race.leader(each for each in self.race.tried if each != name)
        if leader is None or self.race.exact or self._left() <= 0:
            return
        self._sample(leader, self._left())
        # One far behind needs no second sample.
        if name in self.race.alive and leader in self.race.alive:
            behind = self.race.goodness(leader) - self.race.goodness(name)
            if behind < math.log(self.goal.rules.far) and self.forecast.call_s(name) < self._left():
                self._sample(name, self._left())

    def _score_challenger(self) -> bool:
        """Score one more part with the best undecided candidate that is better than the leader."""
        best = self.race.leader(self._challengers())
        if best is None or self.forecast.part_s(best) > self._left():
            return False
        self._score(best)
        return True

    def _challengers(self) -> list[str]:
        """Return the candidates that are better than the leader and whose quality is undecided."""
        leader = self.race.leader()
        bar = -math.inf if leader is None else self.race.goodness(leader)
        return [
            name
            for name in self.race.settled(self.race.tried)
            if name in self.race.waiting and self._scorable(name) and self.race.goodness(name) > bar
        ]

    def _compare_calmly(self) -> bool:
        """Sample the leader with all that were compared with it only while the machine was disturbed, once it is calm."""
        leader = self.race.leader()
        if leader is None or not self._calm:
            return False
        doubtful = [name for name in self.race.tried if not self.race.comparable(leader, name) and self._may_win(name)]
        cost = math.fsum(self.forecast.call_s(name) for name in (leader, *doubtful))
        if not doubtful or not self._fits(cost, self.forecast.prove_s(leader)):
            return False
        self._show(f"comparing {len(doubtful) + 1} candidates again")
        self.race.begin_block()
        for name in (leader, *doubtful):
            if name in self.race.alive:
                self._sample(name, self._left())
        return True

    def _may_win(self, name: str) -> bool:
        return name not in self.race.waiting or self._scorable(name)

    def _take_round(self) -> bool:
        """Sample each candidate among which the answer is open."""
        leader = self.race.leader() or self._top()
        if leader is None or self.race.exact or self._rounds >= self.goal.rules.most_rounds:
            return False
        bar = self.race.goodness(leader)
        near = math.log(self.goal.rules.far)
        rivals = [name for name in self.race.open_against(leader) if self._may_win(name)]
        close = [name for name in rivals if bar - self.race.goodness(name) < near]
        doubtful = [name for name in rivals if not self.race.comparable(leader, name)]
        for among in (dict.fromkeys([*close, *doubtful]), close):
            contenders = sorted([leader, *among], key=self.race.goodness, reverse=self._rounds % 2 == 0)
            cost = math.fsum(self.forecast.call_s(name) for name in contenders)
            if among and self._fits(cost, self.forecast.prove_s(leader)):
                break
        else:
            return False
        self._rounds += 1
        self._show(f"round {self._rounds}, {len(contenders)} candidates")
        self.race.begin_block()
        for name in contenders:
            if name in self.race.alive:
                self._sample(name, self._left())
        return True

    def _prove(self) -> bool:
        """Measure the answer afresh against the baseline; noise-free objectives need no second measurement."""
        name, base = self.race.choice(), self.goal.baseline
        if name is None or name == base or name in self.proofs or self.race.exact or not self.forecast.ready:
            return False
        enough = (max(USUAL, self.proofs.least()), self.proofs.least())
        fits = [least for least in enough if _ROOM * self.forecast.duel_s(name, least) <= self._left()]
        if not fits:
            return False
        self._show(f"proving {name} afresh against {base}")
        most = fits[0] if self._to_try() else MOST
        self.proofs.add(name, duel((base, name), partial(self._afresh, name), self._left() / _ROOM, fits[0], most))
        return True

    # --- measuring and scoring

    def _sample(self, name: str, seconds: float, first: bool = False) -> Trial | None:
        """Measure a candidate once and update the race; None if it failed or was eliminated."""
        left = self._left()
        seen = self.measurer.measure(name, max(min(seconds, left), 0.0))
        self.spent += seen.seconds
        if seen.late and first:
            self.forecast.costs.timed_out(self.forecast.priors[name], seen.late, seen.seconds)
        if seen.why:
            self._lost(name, seen)
            return None
        self.forecast.measured(name, seen.seconds, seen.again, first)
        value = seen.values.get(self.goal.objective)
        if value is None:
            why = f"no {self.goal.objective} can be measured here"
            for other in self.goal.names if name == self.goal.baseline else (name,):
                self.race.drop(other, why)
            return None
        if why := self._beyond(name, seen.values):
            self.race.drop(name, why)
            return seen
        self._calm = not seen.disturbed
        self.untried.pop(name, None)
        self.race.add_sample(name, value, seen.disturbed)
        return seen

    def _lost(self, name: str, seen: Trial) -> None:
        """Eliminate a candidate that failed; one that timed out may be retried."""
        if seen.late and self.race.samples[name]:
            # Only time was short: what was measured before stands.
            return
        if seen.late and name != self.goal.baseline:
            self.untried[name] = f"given up after {_duration(seen.seconds)} of {seen.late}"
            return
        if name == self.goal.baseline:
            late = f"the baseline was not measured in time ({seen.late}): use budget={budget_text(3 * self.spent)}"
            self.race.drop(name, late if seen.late else seen.why)
            return
        self.race.drop(name, seen.why)
        kind = self.forecast.priors[name].kind
        failed = self._failed.setdefault(kind, [])
        failed.append(seen.why)
        if len(failed) >= _FAILURES and failed[-1] == failed[-2]:
            for other in self.race.alive:
                if self.forecast.priors[other].kind == kind and not self.race.samples[other]:
                    self.race.drop(other, f"as the others of its runtime: {seen.why}")

    def _afresh(self, proven: str, name: str) -> Sample:
        seen = self.measurer.measure_afresh(name, proven, max(self._left(), self.forecast.call_s(name)))
        self.spent += seen.seconds
        return Sample(seen.values.get(self.goal.objective), seen.seconds, seen.why, seen.disturbed)

    def _beyond(self, name: str, values: Mapping[str, float]) -> str:
        """Name the limit that a candidate violates; empty if none is known to be."""
        for key, most in self.goal.limits.items():
            if key not in values:
                return f"no {key} could be measured, of which it may have {significant(most)} at most"
            seen = self._over[name].setdefault(key, [])
            seen.append(values[key])
            # The median of three, both of two, or one that is far beyond.
            if (median(seen) > most and len(seen) > 2) or (
                min(seen) > most and (len(seen) > 1 or seen[0] > _FAR * most)
            ):
                return f"{key} {significant(median(seen))} is over {significant(most)}"
        return ""

    def _score(self, name: str) -> None:
        """Score the next part of the text with the baseline and a candidate, and judge its model."""
        model = self.model_of(name)
        part = self.quality.scored(model)
        self._show(f"scoring {name}, part {part + 1} of {self.goal.parts}")
        for each in (self.goal.baseline, name):
            if self.quality.scored(self.model_of(each)) > part:
                continue
            score = self.measurer.score(each, part, max(self._left(), 0.0))
            self.spent += score.seconds
            if not self.quality.take(self.model_of(each), score):
                return
        verdict = self.quality.judge(model)
        for each in (each for each in self.goal.names if self.model_of(each) == model):
            if verdict == "kept":
                self.race.admit(each)
            elif verdict == "broken":
                self.race.drop(each, self.quality.over_the_bound(model))

    def judge_whole_text(self, name: str, ratio: float) -> bool:
        """Judge the answer by its perplexity ratio on the whole text; return whether it remains the answer.

        If it is over the bound, what was worse than it is readmitted, and the result determined again.
        """
        model, base = self.model_of(name), self.model_of(self.goal.baseline)
        if model == base or self.quality.judge_whole_text(model, ratio) != "broken":
            return True
        self.race.disqualify(name, self.quality.over_the_bound(model))
        for each in self.race.alive:
            own = self.model_of(each)
            if self.quality.kept.get(own) is False:
                self.race.drop(each, self.quality.over_the_bound(own))
            elif own != base and own not in self.quality.kept:
                self.race.hold(each)
        self._conclude()
        return False

    # --- predictions

    def _drop_hopeless(self) -> None:
        """Drop untried candidates that cannot be better than the leader by more than the margin."""
        leader = self.race.leader()
        if leader is None or not self.forecast.ready:
            return
        bar = self.race.goodness(leader) + math.log1p(self.goal.rules.margin)
        for name, found in self.forecast.predictions().items():
            if name in self.race.dropped or self.race.samples[name] or found.optimistic >= bar:
                continue
            by_weights = found.bound is not None and found.bound < bar
            most = found.bound if by_weights and found.bound is not None else found.optimistic
            how = "by its weights" if by_weights else "as its kin measured"
            self.race.drop(name, f"{CANNOT_WIN}: at {self._bound_word} {self._value(most)} {how}")

    @property
    def _bound_word(self) -> str:
        return "most" if self.goal.better == "higher" else "least"

    def _value(self, goodness: float) -> str:
        value = math.exp(goodness if self.goal.better == "higher" else -goodness)
        unit = metric(self.goal.objective).unit
        return f"{significant(value, 3)} {unit}" if unit != "-" else significant(value, 3)

    def _to_try(self) -> list[str]:
        return [
            name
            for name in self.race.alive
            if not self.race.samples[name] and name != self.goal.baseline and self._attempts.get(name, 0) < _ATTEMPTS
        ]

    def _top(self) -> str | None:
        """Return the best remaining candidate, whether its quality is decided or not."""
        return self.race.leader(self.race.tried)

    # --- predicted time

    def _left(self) -> float:
        return self.goal.seconds - self.spent

    def _fits(self, cost: float, after: float) -> bool:
        """Return whether something fits into the time and leaves enough for the answer that follows."""
        return _ROOM * cost + _KEPT * after <= self._left()

    # --- conclusion

    def _conclude(self) -> None:
        """Determine the answer, its certainty, and what a larger budget would give."""
        base = self.goal.baseline
        self.winner, self.ending, self.missing, self.needs = None, "none", "", 0.0
        self.proven_of = ""
        self.equal = self.race.equal()
        answer, top = self.race.choice(), self._top()
        proven = [name for name in self.proofs if self.proofs.holds(name) and name in self.race.alive]
        self.fallback = self.race.leader(proven) if proven else None
        margin = math.log1p(self.goal.rules.margin)
        if self.fallback is not None and (
            answer is None or self.race.goodness(answer) <= self.race.goodness(self.fallback) + margin
        ):
            answer = self.fallback
        if self.fallback is not None:
            self.proven_of = self.fallback
        if answer is None and top is None:
            return None
        # Prefer a better candidate that only lacks its proof over a proven one.
        if top is not None and (answer is None or self.race.goodness(top) > self.race.goodness(answer) + margin):
            return self._unproven(top, self._promising(top))
        assert answer is not None
        if answer != base and not self.race.exact and not self.proofs.holds(answer):
            ratio = self.race.ratio(answer, base)
            if (
                self.proofs.claim(answer) is not None
                and not (ratio is not None and ratio.low > 1)
                and base in self.race.alive
            ):
                # Not significantly different from the baseline: recommend the simpler of both.
                self.proven_of = answer
                answer = base
                self.equal = list(dict.fromkeys([base, *self.equal]))
            else:
                return self._unproven(answer, self._promising(answer))
        if (promising := self._promising(answer)) is not None:
            return self._unproven(answer, promising)
        self.winner, self.ending = answer, "proven"
        # One that measured worse is not equal merely for lack of samples.
        bar = self.race.goodness(answer) - margin if self.race.samples[answer] else -math.inf
        self.equal = [name for name in self.equal if name == answer or self.race.goodness(name) >= bar]
        if answer in self.proofs:
            self.proven_of = answer
        return None

    @property
    def fresh(self) -> dict[str, list[float]]:
        """Samples of the fresh comparison behind the result that count, by candidate; empty without one."""
        return self.proofs.samples(self.proven_of)

    @property
    def claim(self) -> Difference | None:
        """The evidence of the result: the fresh comparison with the baseline, or the exact one; None without one."""
        base, winner = self.goal.baseline, self.winner
        if self.proven_of:
            return self.proofs.claim(self.proven_of)
        if not self.race.exact or self.ending != "proven" or winner in (None, base):
            return None
        samples = [self.race.samples[name] for name in (base, winner or base)]
        if not all(samples):
            return None
        (exact,) = judge([build_difference(self.goal.objective, samples[0][-1], samples[1][-1])])
        return exact

    def _unproven(self, name: str, promising: str | None = None) -> None:
        """Conclude with the best so far, the missing proof, and the budget that would allow it."""
        self.winner, self.ending = name, "unproven"
        if self.fallback == name:
            self.fallback = None
        missing, more = [], 0.0
        model = self.model_of(name)
        if name in self.race.waiting:
            missing.append(self.quality.unscored.get(model) or "its quality is not proven to be within the bound")
            more += self.forecast.decide_s(name)
        if not self.forecast.ready:
            missing.append("the baseline could not be measured")
        elif (claim := self.proofs.claim(name)) is not None and not self.proofs.holds(name):
            if self.fallback is None:
                self.proven_of = name
            missing.append(f"measured afresh against the baseline it is inconclusive ({claim.words})")
            more += 2 * self.forecast.duel_s(name, USUAL)
        elif name != self.goal.baseline and not self.race.exact and not self.proofs.holds(name):
            missing.append("it was not measured afresh against the baseline")
            more += self.forecast.duel_s(name, USUAL)
        if promising is not None:
            found = self.forecast.predictions()[promising]
            why = self.untried[promising].partition(": raise")[0]
            missing.append(f"{promising} promises {self._value(found.mean)} and was not tried ({why})")
            more += self.forecast.first_s(promising) + self.forecast.prove_s(promising)
        self.missing = "; ".join(missing)
        # A new search repeats everything but the conversions.
        self.needs = _MORE * (max(self.spent, self.goal.seconds) + more)

    def _promising(self, answer: str) -> str | None:
        """Return an untried candidate expected to be far better than the answer and within the bound, or None."""
        found = self.forecast.predictions()
        bar = self.race.goodness(answer) + math.log(self.goal.rules.far)
        likely = [name for name in self.untried if name in found and name in self.race.alive and found[name].mean > bar]
        if self.goal.most_perplexity is not None:
            likely = self.forecast.likely_within(likely)
        return max(likely, key=lambda name: found[name].mean, default=None)

    def _why_not_tried(self, name: str) -> str:
        """Explain why a candidate was not tried, and the budget it needs."""
        costs = self.forecast.costs
        built = costs.slower * costs.building(self.forecast.priors[name])
        first, proof = self.forecast.first_s(name), self.forecast.prove_s(name)
        cost = first + proof
        budget = budget_text(_MORE * (max(self.spent, self.goal.seconds) + cost))
        what = f"{_duration(built)} of conversion" if built >= 1 else f"{_duration(cost)} to try and prove it"
        before = f"{self.untried[name]}; " if name in self.untried else ""
        if self._fits(first, proof):
            return f"{before}{what}, and not expected to be better by more than {self.goal.rules.margin:.0%}"
        return f"{before}{what}: raise the budget to {budget}"

    def _scorable(self, name: str) -> bool:
        return self.quality.is_open(self.model_of(name))

    def model_of(self, name: str) -> str:
        """Return the model of a candidate; candidates that share it are scored once."""
        return self.forecast.priors[name].model

    def _show(self, doing: str) -> None:
        top = self._top()
        value = ratio = None
        if top is not None:
            value = self.race.samples[top][-1]
            ratio = self.race.ratio(top, self.goal.baseline) if self.race.samples[self.goal.baseline] else None
        samples = sum(map(len, self.race.samples.values()))
        self.measurer.show(SearchState(doing, self.spent, top or "", value, ratio, len(self.race.alive), samples))

    def _tell_dropped(self) -> None:
        for name in self.race.dropped:
            if name not in self._told:
                self._told.add(name)
                self.measurer.dropped(name)


def budget_text(seconds: float) -> str:
    """Format a budget, rounded up: `90s`, `14m`."""
    if seconds <= 90:
        return f"{max(30, 15 * math.ceil(seconds / 15))}s"
    return f"{math.ceil(seconds / 60)}m"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
