"""Forecast a search: what each candidate would give, and the time to try, decide and prove it.

Both are learned from what was measured so far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from llmtrack.decide.goal import Goal, Trial
from llmtrack.decide.predictor import Baseline, Prediction, Predictor, Prior, keeps_quality
from llmtrack.decide.proof import Proofs
from llmtrack.decide.race import Race
from llmtrack.decide.text_quality import TextQuality

# Remaining share of a worker's start time if prestarted, and of compile time if cached.
_PRESTARTED_SHARE, _RECOMPILED_SHARE = 0.3, 0.5
# Conversions longer than this many seconds are started only for a gain.
_LONG_S = 20.0


@dataclass
class Costs:
    """Predicts the time to try a candidate (start, conversion, loading, compiling, calls), and learns from actual times.

    Attributes:
        start_s: seconds to start a worker process.
        prestarted: whether the next worker is started in advance.
        given_up_s: seconds after which a conversion was given up.
        slower: observed over predicted seconds of first samples.
    """

    start_s: float = 5.0
    prestarted: bool = False
    converted: set[str] = field(default_factory=set)
    given_up_s: dict[str, float] = field(default_factory=dict)
    slower: float = 1.0
    _timeouts: dict[str, int] = field(default_factory=dict)

    def first_s(self, prior: Prior, call_s: float) -> float:
        """Predict the seconds of a first sample: start, conversion, loading, compiling, a warm-up and a few calls."""
        start_s = _PRESTARTED_SHARE * self.start_s if self.prestarted else self.start_s
        loading_s = self.slower * (start_s + self.conversion_s(prior) + prior.loads)
        return loading_s + prior.compiles + 3 * call_s + 0.5

    def reload_s(self, prior: Prior) -> float:
        """Predict the seconds to reload a measured candidate."""
        return self.slower * prior.loads + _RECOMPILED_SHARE * prior.compiles + 1.0

    def conversion_s(self, prior: Prior) -> float:
        """Predict the seconds of the conversions that are still missing."""
        return math.fsum(
            max(seconds, 2 * self.given_up_s.get(conversion, 0.0))
            for conversion, seconds in prior.builds.items()
            if conversion not in self.converted
        )

    def add_success(self, prior: Prior, seconds: float, call_s: float) -> None:
        """Learn from a successful first sample."""
        predicted = self.first_s(prior, call_s) / self.slower
        if predicted > 1.0 and not prior.compiles:
            self.slower = min(max(self.slower * (seconds / (predicted * self.slower)) ** 0.5, 0.8), 5.0)
        self.converted |= set(prior.builds)

    def add_timeout(self, prior: Prior, phase: str, seconds: float) -> None:
        """Learn from a first sample that timed out; two timeouts in one phase raise all predictions of it."""
        conversion = next((name for name in prior.builds if name not in self.converted), None)
        if conversion is not None:
            self.given_up_s[conversion] = max(self.given_up_s.get(conversion, 0.0), seconds)
        self._timeouts[phase] = self._timeouts.get(phase, 0) + 1
        if self._timeouts[phase] >= 2:
            self.slower = min(2 * self.slower, 5.0)
            self._timeouts[phase] = 0


class Forecast:
    """Predictions from the state of a search and prior knowledge of each candidate."""

    def __init__(
        self, goal: Goal, race: Race, quality: TextQuality, proofs: Proofs, priors: Mapping[str, Prior]
    ) -> None:
        self.priors = dict(priors)
        self.costs = Costs(goal.start_s, goal.prestarted)
        self._goal, self._race, self._quality, self._proofs = goal, race, quality, proofs
        self._predictor: Predictor | None = None
        self._predictions: tuple[int, dict[str, Prediction]] = (-1, {})
        self._call_s: dict[str, float] = {}
        self._reload_s: dict[str, float] = {}

    @property
    def has_baseline(self) -> bool:
        """Whether the baseline was measured, on which all predictions rest."""
        return self._predictor is not None

    # --- learning

    def set_baseline(self, values: Mapping[str, float], priors: Mapping[str, Prior]) -> None:
        """Base all predictions on the baseline's metrics, and on priors given these metrics."""
        name = self._goal.baseline
        step = values.get("inter_token_latency_ms", 0.0) / 1000
        prefill = values.get("time_to_first_token_ms", 0.0) / 1000
        bandwidth = values.get("copy_bandwidth_gb_per_s", 0.0) * 1e9
        moved = values.get("decode_mib", 0.0) * 2**20
        if not step:
            step = 1 / values.get("decode_tokens_per_sec", values.get("tokens_per_sec", 1.0))
        read = moved / bandwidth if moved and bandwidth else None
        weights = values.get("model_size_mib", 0.0) * 2**20
        goodness = self._race.goodness(name) if self._race.samples[name] else None
        baseline = Baseline(self.priors[name], step, prefill or step, read, weights, goodness)
        self.priors = dict(priors)
        self._predictor = Predictor(self.priors, baseline, self._goal.work)

    def add_trial(self, name: str, trial: Trial, first: bool) -> None:
        """Learn from the duration of a sample; for the first one, the candidate was loaded."""
        call_s = trial.seconds if trial.repeat_s is None else trial.repeat_s
        self._call_s[name] = call_s
        if not first:
            return
        prior = self.priors[name]
        # Conversions are not repeated when it is reloaded.
        converted = self.costs.conversion_s(prior) > 0 or prior.compiles > 0
        loading = max(trial.seconds - call_s, 0.0)
        usual = self._reload_s.get(self._goal.baseline, loading) + self.costs.reload_s(prior)
        self._reload_s[name] = min(loading, usual) if converted else loading
        self.costs.add_success(prior, trial.seconds, call_s)

    # --- what candidates would give

    def predictions(self) -> dict[str, Prediction]:
        """Predict each candidate from the measurements so far; empty if the baseline failed."""
        if self._predictor is None:
            return {}
        samples = self._race.count
        if self._predictions[0] != samples:
            measured = self._race.calmly_compared(name for name in self._goal.names if self._race.samples[name])
            predictions = self._predictor.predict({name: self._race.goodness(name) for name in measured})
            self._predictions = samples, predictions
        return self._predictions[1]

    def decided(self) -> list[tuple[Prior, bool]]:
        """Return one candidate of each model whose quality is decided, and whether it keeps the bound."""
        within = self._quality.within
        decided: dict[str, Prior] = {}
        for prior in map(self.priors.__getitem__, self._goal.names):
            if prior.model in within:
                decided.setdefault(prior.model, prior)
        return [(prior, within[model]) for model, prior in decided.items()]

    def likely_within(self, names: Iterable[str]) -> list[str]:
        """Return the candidates that probably keep the quality bound."""
        decided = self.decided()
        return [name for name in names if keeps_quality(self.priors[name], decided) >= 0.5]

    def best_likely_within(self) -> float:
        """Return the goodness of the best measured candidate that is within the bound, or likely to be."""
        measured = self._race.calmly_compared(self._race.tried)
        held = self._race.held
        likely = [name for name in measured if name not in held]
        likely += self.likely_within(name for name in measured if name in held)
        return max(map(self._race.goodness, likely), default=-50.0)

    def expected_goodness(self, name: str) -> float:
        """Return the expected goodness of a candidate, discounted by the probability of keeping the quality bound."""
        prediction = self.predictions().get(name)
        if prediction is None:
            return 0.0
        return prediction.mean + math.log(max(keeps_quality(self.priors[name], self.decided()), 1e-9))

    # --- time

    def is_long(self, name: str) -> bool:
        """Return whether a candidate needs a long conversion, started only for a gain beyond the margin."""
        return self.costs.conversion_s(self.priors[name]) >= _LONG_S

    def call_s(self, name: str) -> float:
        """Predict the seconds of a further sample of a candidate."""
        if name in self._call_s:
            return self._call_s[name]
        base = self._call_s.get(self._goal.baseline, 1.0)
        prediction = self.predictions().get(name)
        if prediction is None or not self._race.is_tried(self._goal.baseline):
            return base
        faster = math.exp(min(prediction.mean - self._race.goodness(self._goal.baseline), 3.0))
        return min(base, max(base / faster, 0.3)) if self._goal.objective != "model_size_mib" else base

    def first_s(self, name: str) -> float:
        """Predict the seconds of a candidate's first sample."""
        return self.costs.first_s(self.priors[name], self.call_s(name))

    def prove_s(self, name: str) -> float:
        """Predict the seconds to decide a candidate's quality and to measure it afresh."""
        return self.decide_s(name) + self.duel_s(name, self._proofs.least())

    def answer_s(self, likely: Iterable[str], undecided: Iterable[str]) -> float:
        """Predict the seconds to an answer among the tried candidates.

        Args:
            likely: the candidates one of which will be measured afresh.
            undecided: the candidates whose quality is decided before.
        """
        one_of_each_model = {self.priors[name].model: name for name in undecided}
        duel_s = max(self.duel_s(name, self._proofs.least()) for name in likely)
        return math.fsum(map(self.decide_s, one_of_each_model.values())) + duel_s

    def decide_s(self, name: str) -> float:
        """Predict the seconds to decide a candidate's quality."""
        model = self.priors[name].model
        if name not in self._race.held or not self._quality.is_open(model):
            return 0.0
        return self._quality.deciding_s(model, self._usual_part_s())

    def part_s(self, name: str) -> float:
        """Predict the seconds to score the next part of the text with a candidate."""
        return self._quality.next_part_s(self.priors[name].model, self._usual_part_s())

    def scoring_s(self, name: str) -> float:
        """Predict the seconds to score the whole text with a candidate."""
        return self._quality.whole_s(self.priors[name].model, self._call_s.get(name, 0.0))

    def duel_s(self, name: str, samples: int) -> float:
        """Predict the seconds of some fresh samples of a candidate and of the baseline; 0 if none are needed."""
        base = self._goal.baseline
        if name == base or not self.has_baseline or self._race.exact or self._proofs.holds(name):
            return 0.0
        return math.fsum(
            self._reload_s.get(side, self.costs.reload_s(self.priors[side])) + samples * self.call_s(side)
            for side in (base, name)
        )

    def _usual_part_s(self) -> float:
        """Return the default seconds per part of the text."""
        return min(2 * self._call_s.get(self._goal.baseline, 0.5), 2.0)
