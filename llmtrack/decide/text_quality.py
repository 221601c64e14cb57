"""Keep what is known of each model's perplexity over the reference's while a text is scored part by part."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmtrack.decide.bounded import ComparedPart, Judgement, judge_bound, perplexity_ratio
from llmtrack.decide.goal import PartScore
from llmtrack.decide.significance import Ratio
from llmtrack.decide.wording import change_text

# Of a text, a bound is decided after about this share.
_SCORED_SHARE = 0.7


@dataclass
class TextQuality:
    """The scores of models on the parts of a text, and whether each keeps to the bound.

    Args:
        reference: the baseline's model.
        models: all models.
        parts: how many parts the text has.
        most: perplexity over the reference's at most; None: any.

    Attributes:
        ratios: by model, its perplexity over the reference's as far as it is scored.
        unscored: by model, why its quality cannot be known.
        kept: by model that is decided, whether it keeps to the bound.
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
        """Return how many parts are scored by a model."""
        return len(self._scores.get(model, ()))

    def is_open(self, model: str) -> bool:
        """Return whether scoring a model further can tell more."""
        return model not in self.unscored and self.scored(model) < self.parts

    def take(self, model: str, score: PartScore) -> bool:
        """Keep a score of the next part, and return whether it could be scored."""
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
        # The first part holds what comes once: loading, or compiling.
        self._part_s[model] = score.seconds if known is None else min(known, score.seconds)
        return True

    def judge(self, model: str) -> Judgement:
        """Return whether a model keeps to the bound by the parts that it and the reference have scored."""
        if self.most is None:
            raise ValueError("there is no bound to keep to")
        pairs = zip(self._scores[model], self._scores[self.reference], strict=False)
        parts = [ComparedPart(own.nats, other.nats, own.tokens) for own, other in pairs]
        tests = max(1, len(self.models) - 1)
        self.ratios[model] = perplexity_ratio(parts, self.parts, looks=self.parts, tests=tests)
        verdict = judge_bound(self.ratios[model], self.most)
        if verdict != "open":
            self.kept[model] = verdict == "kept"
        return verdict

    def over_the_bound(self, model: str) -> str:
        """Say by how much a model is over the bound."""
        assert self.most is not None
        whole = self.scored(model) >= self.parts
        change = change_text(self.ratios[model], interval=not whole)
        return f"perplexity {change} is over {change_text(self.most)}"

    # --- what it takes

    def deciding_s(self, model: str, usual: float) -> float:
        """Return the seconds that deciding a model's quality is expected to take.

        Args:
            model: which.
            usual: seconds of a part where none has been scored.
        """
        return max(1.0, _SCORED_SHARE * self.parts - self.scored(model)) * self.next_part_s(model, usual)

    def next_part_s(self, model: str, usual: float) -> float:
        """Return the seconds of one part more by a model, and by the reference where it has not scored it yet."""
        usual = self._part_s.get(self.reference, usual)
        also = 0.0 if self.scored(self.reference) > self.scored(model) else usual
        return self._part_s.get(model, usual) + also

    def whole_s(self, model: str, usual: float) -> float:
        """Return the seconds that scoring all of the text by a model is expected to take."""
        return self.parts * self._part_s.get(model, self._part_s.get(self.reference, usual))
