"""Track each model's perplexity relative to the reference while a text is scored part by part."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmtrack.decide.bounded import ComparedPart, Judgement, judge_bound, perplexity_ratio
from llmtrack.decide.goal import PartScore
from llmtrack.decide.significance import Ratio
from llmtrack.decide.wording import change_text

# Typical share of the text after which the bound is decided.
_SCORED_SHARE = 0.7


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
        kept: by decided model, whether it keeps the bound.
    """

    reference: str
    models: frozenset[str]
    parts: int
    most: float | None
    ratios: dict[str, Ratio] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)
    kept: dict[str, bool] = field(default_factory=dict)
    _scores: dict[str, list[PartScore]] = field(default_factory=dict)
    _part_s: dict[str, float] = field(default_factory=dict)

    def scored(self, model: str) -> int:
        """Return the number of parts scored by a model."""
        return len(self._scores.get(model, ()))

    def is_open(self, model: str) -> bool:
        """Return whether scoring a model further can be informative."""
        return model not in self.unscored and self.scored(model) < self.parts

    def take(self, model: str, score: PartScore) -> bool:
        """Record a score of the next part; return whether it succeeded."""
        known = self._part_s.get(model)
        if score.late:
            self._part_s[model] = 2 * score.seconds
            return False
        self._scores.setdefault(model, []).append(score)
        if not score.tokens:
            is_reference = model == self.reference
            who = "the baseline's" if is_reference else "its"
            for each in (self.models if is_reference else {model}) - set(self.kept):
                self.unscored[each] = f"{who} quality could not be scored: {score.why}"
            return False
        # The first part includes one-time costs: loading, or compiling.
        self._part_s[model] = score.seconds if known is None else min(known, score.seconds)
        return True

    def judge(self, model: str) -> Judgement:
        """Judge a model by the parts scored by both it and the reference."""
        if self.most is None:
            raise ValueError("there is no bound to keep to")
        pairs = zip(self._scores[model], self._scores[self.reference], strict=False)
        parts = [ComparedPart(own.nats, other.nats, own.tokens) for own, other in pairs]
        tests = max(1, len(self.models) - 1)
        return self._judged(model, perplexity_ratio(parts, self.parts, looks=self.parts, tests=tests))

    def take_whole(self, model: str, ratio: float) -> Judgement:
        """Judge a model by its perplexity ratio on the whole text."""
        return self._judged(model, Ratio(ratio, ratio, ratio))

    def _judged(self, model: str, ratio: Ratio) -> Judgement:
        self.ratios[model] = ratio
        if self.most is None:
            return "kept"
        verdict = judge_bound(ratio, self.most)
        if verdict != "open":
            self.kept[model] = verdict == "kept"
        return verdict

    def over_the_bound(self, model: str) -> str:
        """Describe a model's violation of the bound."""
        assert self.most is not None
        return f"perplexity {change_text(self.ratios[model])} is over {change_text(self.most)}"

    # --- predicted time

    def deciding_s(self, model: str, usual: float) -> float:
        """Predict the seconds to decide a model's quality.

        Args:
            usual: default seconds per part.
        """
        return max(1.0, _SCORED_SHARE * self.parts - self.scored(model)) * self.next_part_s(model, usual)

    def next_part_s(self, model: str, usual: float) -> float:
        """Predict the seconds of a model's next part, including the reference's if it is not scored yet."""
        usual = self._part_s.get(self.reference, usual)
        also = 0.0 if self.scored(self.reference) > self.scored(model) else usual
        return self._part_s.get(model, usual) + also

    def whole_s(self, model: str, usual: float) -> float:
        """Predict the seconds to score the whole text with a model."""
        return self.parts * self._part_s.get(model, self._part_s.get(self.reference, usual))
