"""Search for the best way to run a model within a time budget; an answer is available at any time (`evidence`).

The search is independent of engines and MLflow: a `Measurer` acts, and everything follows from its answers, so that an
interrupted search can be replayed. The next action is the first of these that fits into the remaining time:

1. measure the baseline, then the three most promising candidates (`predictor`), each beside the leader (`race`);
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
from functools import partial
from statistics import median

from llmtrack.decide.evidence import RESERVE, TIME_MARGIN, Evidence, budget_text, duration_text
from llmtrack.decide.goal import Goal, Measurer, SearchState, Trial
from llmtrack.decide.predictor import keeps_quality
from llmtrack.decide.proof import MOST, USUAL, Sample, duel
from llmtrack.host.formatting import significant

FIRST = 3
"""Candidates to try before any is scored."""
CANNOT_WIN = "cannot win"
"""Prefix of the reason of a candidate eliminated by its prediction."""
# Factor by which a single value must exceed a limit to violate it.
_FAR_OVER = 1.5
# Time limit of a first sample: a multiple of the prediction, at least this many seconds or this share of the remaining
# time. A candidate that timed out is tried once more with all of the remaining time, if that is enough.
_PATIENCE, _LEAST_PATIENCE_S, _LEAST_PATIENCE_SHARE = 3.0, 30.0, 0.2
_ATTEMPTS = 2
# Failed candidates of a runtime after which the others are dropped.
_FAILURES = 2


class Tuning(Evidence):
    """The search: chooses each action from the evidence so far."""

    def __init__(self, goal: Goal, measurer: Measurer) -> None:
        super().__init__(goal, measurer.priors({}))
        self._measurer = measurer
        # Values by candidate and limited metric.
        self._limited: dict[str, dict[str, list[float]]] = {name: {} for name in goal.names}
        self._attempts: dict[str, int] = {}
        # Reasons by runtime.
        self._failures: dict[str, list[str]] = {}
        self._rounds = 0
        # Whether the machine was calm during the last sample.
        self._calm = True
        self._reported: set[str] = set()

    def run(self) -> None:
        """Search until nothing is left to do or the time is up; the attributes hold the result."""
        self._measure_baseline()
        while self._step():
            self._report_dropped()
        self.explain_untried()
        self.conclude()
        self._report_dropped()

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
        trial = self._sample(name, self.left_s, first=True)
        if trial is not None:
            self.forecast.set_baseline(trial.values, self._measurer.priors(trial.values))

    def _drop_hopeless(self) -> None:
        """Drop untried candidates that cannot be better than the leader by more than the margin."""
        leader = self.race.leader()
        if leader is None or not self.forecast.has_baseline:
            return
        bar = self.race.goodness(leader) + math.log1p(self.goal.rules.margin)
        extreme = "most" if self.goal.better == "higher" else "least"
        for name, prediction in self.forecast.predictions().items():
            if name in self.race.dropped or self.race.samples[name] or prediction.optimistic >= bar:
                continue
            value, source = prediction.optimistic, "as its kin measured"
            if prediction.bound is not None and prediction.bound < bar:
                value, source = prediction.bound, "by its weights"
            self.race.drop(name, f"{CANNOT_WIN}: at {extreme} {self.value_text(value)} {source}")

    def _compare_calmly(self) -> bool:
        """Sample the leader with all that were compared with it only while the machine was disturbed, once it is calm."""
        leader = self.race.leader()
        if leader is None or not self._calm:
            return False
        doubtful = [name for name in self.race.tried if not self.race.comparable(leader, name) and self._may_win(name)]
        names = [leader, *doubtful]
        if not doubtful or not self.fits(math.fsum(map(self.forecast.call_s, names)), self.forecast.prove_s(leader)):
            return False
        self._show(f"comparing {len(names)} candidates again")
        self._sample_block(names)
        return True

    def _try_next(self, with_proof: bool) -> bool:
        """Try the most promising candidate that fits into the time; timed-out ones come last."""
        best = self.best_tried()
        answer_s = 0.0
        if best is not None and with_proof:
            # Any candidate that is better than the leader may be beyond the bound.
            answer_s = self.forecast.answer_s({best, self.race.choice() or best}, self._challengers())
        names = self._to_try()
        new = [name for name in names if name not in self._attempts]
        timed_out = [name for name in names if name in self._attempts]
        name = self._most_promising(new, with_proof, answer_s) or self._most_promising(timed_out, with_proof, answer_s)
        if name is None:
            return False
        expected_s, left_s = self.forecast.first_s(name), self.left_s
        limit_s = max(left_s - RESERVE * answer_s, min(TIME_MARGIN * expected_s, left_s))
        if name in new:
            limit_s = min(limit_s, max(_PATIENCE * expected_s, _LEAST_PATIENCE_S, _LEAST_PATIENCE_SHARE * left_s))
        self._try(name, limit_s)
        return True

    def _most_promising(self, names: Sequence[str], with_proof: bool, answer_s: float) -> str | None:
        """Return the candidate with the largest expected improvement per second that fits into the time, or None.

        Args:
            with_proof: whether its proof must fit, too, unless it promises far more than the best so far.
            answer_s: seconds reserved for an answer among the tried candidates.
        """
        predictions, decided = self.forecast.predictions(), self.forecast.decided()
        bar = self.forecast.best_likely_within()
        undecided = {self.model_of(name) for name in self._challengers()}
        promises = {}
        for name in names:
            if self.model_of(name) in undecided:
                continue  # The same model: decide first whether it is within the bound.
            first_s, prediction = self.forecast.first_s(name), predictions.get(name)
            far_better = prediction is not None and prediction.mean > bar + math.log(self.goal.rules.far)
            after_s = max(answer_s, self.forecast.prove_s(name)) if with_proof and not far_better else 0.0
            if not self.fits(first_s, after_s):
                continue
            gain = 1.0 if prediction is None else prediction.improvement(bar)
            gain *= keeps_quality(self.forecast.priors[name], decided)
            if gain > 0 and not (self.forecast.is_long(name) and gain < math.log1p(self.goal.rules.margin)):
                promises[name] = gain / first_s
        return max(promises, key=promises.__getitem__, default=None)

    def _try(self, name: str, seconds: float) -> None:
        """Measure a candidate for the first time, beside the best so far."""
        self._show(f"trying {name}")
        self._attempts[name] = self._attempts.get(name, 0) + 1
        self.race.begin_block()
        if self._sample(name, seconds, first=True) is None:
            return
        leader = self.race.leader(other for other in self.race.tried if other != name)
        if leader is None or self.race.exact or self.left_s <= 0:
            return
        self._sample(leader, self.left_s)
        # One far behind needs no second sample.
        if name in self.race.alive and leader in self.race.alive:
            behind = self.race.goodness(leader) - self.race.goodness(name)
            if behind < math.log(self.goal.rules.far) and self.forecast.call_s(name) < self.left_s:
                self._sample(name, self.left_s)

    def _score_challenger(self) -> bool:
        """Score one more part with the best undecided candidate that is better than the leader."""
        best = self.race.leader(self._challengers())
        if best is None or self.forecast.part_s(best) > self.left_s:
            return False
        self._score(best)
        return True

    def _take_round(self) -> bool:
        """Sample each candidate among which the answer is open."""
        leader = self.race.leader() or self.best_tried()
        if leader is None or self.race.exact or self._rounds >= self.goal.rules.most_rounds:
            return False
        bar, far = self.race.goodness(leader), math.log(self.goal.rules.far)
        rivals = [name for name in self.race.open_against(leader) if self._may_win(name)]
        close = [name for name in rivals if bar - self.race.goodness(name) < far]
        doubtful = [name for name in rivals if not self.race.comparable(leader, name)]
        for among in (dict.fromkeys([*close, *doubtful]), close):
            contenders = sorted([leader, *among], key=self.race.goodness, reverse=self._rounds % 2 == 0)
            cost_s = math.fsum(map(self.forecast.call_s, contenders))
            if among and self.fits(cost_s, self.forecast.prove_s(leader)):
                break
        else:
            return False
        self._rounds += 1
        self._show(f"round {self._rounds}, {len(contenders)} candidates")
        self._sample_block(contenders)
        return True

    def _prove(self) -> bool:
        """Measure the answer afresh against the baseline; noise-free objectives need no second measurement."""
        name, base = self.race.choice(), self.goal.baseline
        if name is None or name == base or name in self.proofs or self.race.exact or not self.forecast.has_baseline:
            return False
        least = self.proofs.least()
        enough = (max(USUAL, least), least)
        fits = [samples for samples in enough if TIME_MARGIN * self.forecast.duel_s(name, samples) <= self.left_s]
        if not fits:
            return False
        self._show(f"proving {name} afresh against {base}")
        most = fits[0] if self._to_try() else MOST
        measure = partial(self._measure_afresh, name)
        self.proofs.add(name, duel((base, name), measure, self.left_s / TIME_MARGIN, fits[0], most))
        return True

    # --- candidates

    def _to_try(self) -> list[str]:
        return [
            name
            for name in self.race.alive
            if not self.race.samples[name] and name != self.goal.baseline and self._attempts.get(name, 0) < _ATTEMPTS
        ]

    def _challengers(self) -> list[str]:
        """Return the candidates that are better than the leader and whose quality is undecided."""
        leader = self.race.leader()
        bar = -math.inf if leader is None else self.race.goodness(leader)
        return [
            name
            for name in self.race.calmly_compared(self.race.tried)
            if name in self.race.held and self._may_win(name) and self.race.goodness(name) > bar
        ]

    def _may_win(self, name: str) -> bool:
        return name not in self.race.held or self.quality.is_open(self.model_of(name))

    # --- measuring and scoring

    def _sample_block(self, names: Sequence[str]) -> None:
        """Sample each candidate once, to be compared with each other, unless it is eliminated meanwhile."""
        self.race.begin_block()
        for name in names:
            if name in self.race.alive:
                self._sample(name, self.left_s)

    def _sample(self, name: str, seconds: float, first: bool = False) -> Trial | None:
        """Measure a candidate once and update the race; None if it failed or was eliminated."""
        trial = self._measurer.measure(name, max(min(seconds, self.left_s), 0.0))
        self.spent += trial.seconds
        if trial.timed_out_in and first:
            self.forecast.costs.add_timeout(self.forecast.priors[name], trial.timed_out_in, trial.seconds)
        if trial.failure:
            self._handle_failure(name, trial)
            return None
        self.forecast.add_trial(name, trial, first)
        value = trial.values.get(self.goal.objective)
        if value is None:
            for other in self.goal.names if name == self.goal.baseline else (name,):
                self.race.drop(other, f"no {self.goal.objective} can be measured here")
            return None
        if violation := self._violation(name, trial.values):
            self.race.drop(name, violation)
            return trial
        self._calm = not trial.disturbed
        self.untried.pop(name, None)
        self.race.add_sample(name, value, trial.disturbed)
        return trial

    def _measure_afresh(self, proven: str, name: str) -> Sample:
        seconds = max(self.left_s, self.forecast.call_s(name))
        trial = self._measurer.measure_afresh(name, proven, seconds)
        self.spent += trial.seconds
        return Sample(trial.values.get(self.goal.objective), trial.seconds, trial.disturbed)

    def _handle_failure(self, name: str, trial: Trial) -> None:
        """Eliminate a candidate that failed; one that timed out may be retried."""
        phase = trial.timed_out_in
        if phase and self.race.samples[name]:
            return  # Only time was short: what was measured before stands.
        if phase and name != self.goal.baseline:
            self.untried[name] = f"given up after {duration_text(trial.seconds)} of {phase}"
            return
        if phase:
            budget = budget_text(3 * self.spent)
            self.race.drop(name, f"the baseline was not measured in time ({phase}): use budget={budget}")
            return
        self.race.drop(name, trial.failure)
        if name == self.goal.baseline:
            return
        kind = self.forecast.priors[name].kind
        failures = self._failures.setdefault(kind, [])
        failures.append(trial.failure)
        if len(failures) >= _FAILURES and failures[-1] == failures[-2]:
            for other in self.race.alive:
                if self.forecast.priors[other].kind == kind and not self.race.samples[other]:
                    self.race.drop(other, f"as the others of its runtime: {trial.failure}")

    def _violation(self, name: str, values: Mapping[str, float]) -> str:
        """Name the limit that a candidate violates; empty if none is known to be."""
        for metric, most in self.goal.limits.items():
            if metric not in values:
                return f"no {metric} could be measured, of which it may have {significant(most)} at most"
            measured = self._limited[name].setdefault(metric, [])
            measured.append(values[metric])
            # The median of three, both of two, or one that is far beyond.
            if (median(measured) > most and len(measured) > 2) or (
                min(measured) > most and (len(measured) > 1 or measured[0] > _FAR_OVER * most)
            ):
                return f"{metric} {significant(median(measured))} is over {significant(most)}"
        return ""

    def _score(self, name: str) -> None:
        """Score the next part of the text with the baseline and a candidate, and judge its model."""
        model = self.model_of(name)
        part = self.quality.scored(model)
        self._show(f"scoring {name}, part {part + 1} of {self.goal.parts}")
        for side in (self.goal.baseline, name):
            if self.quality.scored(self.model_of(side)) > part:
                continue
            score = self._measurer.score(side, part, max(self.left_s, 0.0))
            self.spent += score.seconds
            if not self.quality.add_score(self.model_of(side), score):
                return
        judgement = self.quality.judge(model)
        for other in [other for other in self.goal.names if self.model_of(other) == model]:
            if judgement == "kept":
                self.race.admit(other)
            elif judgement == "broken":
                self.race.drop(other, self.quality.violation_text(model))

    # --- reporting

    def _show(self, action: str) -> None:
        best = self.best_tried()
        value = ratio = None
        if best is not None:
            value = self.race.samples[best][-1]
            ratio = self.race.ratio(best, self.goal.baseline) if self.race.samples[self.goal.baseline] else None
        state = SearchState(action, self.spent, best or "", value, ratio, len(self.race.alive), self.race.count)
        self._measurer.show(state)

    def _report_dropped(self) -> None:
        for name in self.race.dropped:
            if name not in self._reported:
                self._reported.add(name)
                self._measurer.dropped(name)
