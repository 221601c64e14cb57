"""Track each model's perplexity relative to the reference while a text is scored part by part.

The losses are compared part by part, so that the difficulty of a part cancels out. The estimated quantity is the ratio
on the whole text, so no uncertainty remains once all of it is scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from llmtrack.decide.differences import change_text
from llmtrack.decide.goal import PartScore
from llmtrack.decide.race import ratio_around, t_quantile
from llmtrack.decide.significance import ALPHA, Ratio

Judgement = Literal["kept", "broken", "open"]

# Typical share of the text after which the bound is decided.
_SCORED_SHARE = 0.7


@dataclass(frozen=True)
class ComparedPart:
    """Summed negative log-likelihoods of two models on one part of a text, over its predicted tokens."""

    nats: float
    reference_nats: float
    tokens: int


def perplexity_ratio(
    parts: Sequence[ComparedPart], parts_of_text: int, looks: int = 1, tests: int = 1, alpha: float = ALPHA
) -> Ratio:
    """Estimate the perplexity ratio (model over reference) on the whole text, with an interval valid over all looks.

    Args:
        parts: scored parts, a random sample of all.
        looks: planned number of looks before all is scored.
        tests: number of models judged.

    Raises:
        ValueError: no part is scored.
    """
    if not parts:
        raise ValueError("no part of the text is scored")
    tokens = np.array([part.tokens for part in parts], dtype=np.float64)
    differences = np.array([part.nats - part.reference_nats for part in parts])
    mean = float(differences.sum() / tokens.sum())
    n = len(parts)
    if n >= parts_of_text:
        return ratio_around(mean)
    if n == 1:
        return Ratio(ratio_around(mean).value, 0.0, math.inf)
    # Ratio estimator, sampling without replacement (W. Cochran, Sampling Techniques (1977), chapter 6).
    variance = float(((differences - mean * tokens) ** 2).sum() / (n - 1)) * n * (1 - n / parts_of_text)
    half = t_quantile(alpha / 2 / looks / tests, n - 1) * math.sqrt(variance) / float(tokens.sum())
    return ratio_around(mean, half)


def judge_bound(ratio: Ratio, most: float) -> Judgement:
    """Judge whether the ratio's interval lies within the bound, beyond it, or includes it."""
    if ratio.high <= most:
        return "kept"
    return "broken" if ratio.low > most else "open"


@dataclass
class TextQuality:
    """Scores of models on the parts of a text, and whether each keeps the bound.

    Args:
        reference: the baseline's model.
        parts: number of parts of the text.
        most: maximum perplexity relative to the reference; None for any.

    Attributes:
        ratios: perplexity ratio by model, as far as scored.
        unscored: why a model's quality cannot be determined.
        within: by decided model, whether it keeps the bound.
    """

    reference: str
    models: frozenset[str]
    parts: int
    most: float | None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)
    within: dict[str, bool] = field(default_factory=dict)
    _scores: dict[str, list[PartScore]] = field(default_factory=dict)
    _part_s: dict[str, float] = field(default_factory=dict)

    def scored(self, model: str) -> int:
        """Return the number of parts scored by a model."""
        return len(self._scores.get(model, ()))

    def is_open(self, model: str) -> bool:
        """Return whether scoring a model further can be informative."""
        return model not in self.unscored and self.scored(model) < self.parts

    def add_score(self, model: str, score: PartScore) -> bool:
        """Add a model's score of its next part; return whether it succeeded."""
        if score.timed_out:
            self._part_s[model] = 2 * score.seconds
            return False
        self._scores.setdefault(model, []).append(score)
        if not score.tokens:
            is_reference = model == self.reference
            whose = "the baseline's" if is_reference else "its"
            for unscored in (self.models if is_reference else {model}) - set(self.within):
                self.unscored[unscored] = f"{whose} quality could not be scored: {score.failure}"
            return False
        # The first part includes one-time costs: loading, or compiling.
        self._part_s[model] = min(score.seconds, self._part_s.get(model, math.inf))
        return True

    def judge(self, model: str) -> Judgement:
        """Judge a model by the parts scored by both it and the reference."""
        if self.most is None:
            raise ValueError("there is no bound to keep to")
        scores = zip(self._scores[model], self._scores[self.reference], strict=False)
        parts = [ComparedPart(score.nats, reference.nats, score.tokens) for score, reference in scores]
        tests = max(1, len(self.models) - 1)
        return self._judge(model, perplexity_ratio(parts, self.parts, looks=self.parts, tests=tests))

    def judge_whole_text(self, model: str, ratio: float) -> Judgement:
        """Judge a model by its perplexity ratio on the whole text."""
        return self._judge(model, Ratio(ratio, ratio, ratio))

    def _judge(self, model: str, ratio: Ratio) -> Judgement:
        self.ratios[model] = ratio
        if self.most is None:
            return "kept"
        judgement = judge_bound(ratio, self.most)
        if judgement != "open":
            self.within[model] = judgement == "kept"
        return judgement

    def violation_text(self, model: str) -> str:
        """Describe a model's violation of the bound."""
        assert self.most is not None
        return f"perplexity {change_text(self.ratios[model])} is over {change_text(self.most)}"

    # --- predicted time; `usual_s` is the default per part

    def deciding_s(self, model: str, usual_s: float) -> float:
        """Predict the seconds to decide a model's quality."""
        return max(1.0, _SCORED_SHARE * self.parts - self.scored(model)) * self.next_part_s(model, usual_s)

    def next_part_s(self, model: str, usual_s: float) -> float:
        """Predict the seconds of a model's next part, including the reference's if it is not scored yet."""
        reference_s = self._part_s.get(self.reference, usual_s)
        also_reference = self.scored(self.reference) <= self.scored(model)
        return self._part_s.get(model, reference_s) + (reference_s if also_reference else 0.0)

    def whole_s(self, model: str, usual_s: float) -> float:
        """Predict the seconds to score the whole text with a model."""
        return self.parts * self._part_s.get(model, self._part_s.get(self.reference, usual_s))
