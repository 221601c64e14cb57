"""Is a bound on quality surely kept, or surely broken, by what has been scored so far of a text?

The losses of a model and of its reference on the same parts of a text are compared part by part: what makes a part hard is the
same for both and falls out. What is asked is what scoring all of the text would give, so that nothing is in doubt once all of
it is scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmtrack.decide.racing import around, quantile
from llmtrack.decide.significance import ALPHA, Ratio

Judgement = Literal["kept", "broken", "open"]


@dataclass(frozen=True)
class ComparedPart:
    """The losses on one part of a text.

    Attributes:
        nats: summed negative log-likelihood of the model.
        reference: that of the reference.
        tokens: predicted tokens of both.
    """

    nats: float
    reference: float
    tokens: int


def perplexity_ratio(
    parts: Sequence[ComparedPart], of: int, looks: int = 1, tests: int = 1, alpha: float = ALPHA
) -> Ratio:
    """Return the model's perplexity over the reference's on the whole text, with an interval that holds for all looks.

    Args:
        parts: those that are scored, drawn at random from all.
        of: how many parts the text has.
        looks: how often the interval is looked at before all is scored.
        tests: how many models are judged.
        alpha: chance that any of the intervals does not hold.

    Raises:
        ValueError: no part is scored.
    """
    if not parts:
        raise ValueError("no part of the text is scored")
    tokens = np.array([part.tokens for part in parts], dtype=np.float64)
    differences = np.array([part.nats - part.reference for part in parts])
    mean = float(differences.sum() / tokens.sum())
    n = len(parts)
    if n >= of:
        return around(mean)
    if n == 1:
        return Ratio(around(mean).value, 0.0, math.inf)
    # A ratio of sums, drawn without putting back (W. Cochran, Sampling Techniques (1977), chapter 6).
    variance = float(((differences - mean * tokens) ** 2).sum() / (n - 1)) * n * (1 - n / of)
    half = quantile(alpha / 2 / looks / tests, n - 1) * math.sqrt(variance) / float(tokens.sum())
    return around(mean, half)


def judge_bound(ratio: Ratio, most: float) -> Judgement:
    """Return whether perplexity is surely at most so many times the reference's, surely not, or neither yet."""
    if ratio.high <= most:
        return "kept"
    return "broken" if ratio.low > most else "open"
