"""Sequential test of a quality bound on the parts of a text scored so far.

The losses of a model and its reference are compared part by part, so that the difficulty of a part cancels out. The
estimated quantity is the ratio on the whole text, so no uncertainty remains once all of it is scored.
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
    """Losses of two models on one part of a text.

    Attributes:
        nats: summed negative log-likelihood of the model.
        reference: the same of the reference.
        tokens: predicted tokens.
    """

    nats: float
    reference: float
    tokens: int


def perplexity_ratio(
    parts: Sequence[ComparedPart], of: int, looks: int = 1, tests: int = 1, alpha: float = ALPHA
) -> Ratio:
    """Estimate the perplexity ratio (model over reference) on the whole text, with an interval valid over all looks.

    Args:
        parts: scored parts, a random sample of all.
        of: number of parts of the text.
        looks: planned number of looks before all is scored.
        tests: number of models judged.
        alpha: probability that any interval fails to cover.

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
    # Ratio estimator, sampling without replacement (W. Cochran, Sampling Techniques (1977), chapter 6).
    variance = float(((differences - mean * tokens) ** 2).sum() / (n - 1)) * n * (1 - n / of)
    half = quantile(alpha / 2 / looks / tests, n - 1) * math.sqrt(variance) / float(tokens.sum())
    return around(mean, half)


def judge_bound(ratio: Ratio, most: float) -> Judgement:
    """Return whether the ratio's interval lies within the bound, beyond it, or includes it."""
    if ratio.high <= most:
        return "kept"
    return "broken" if ratio.low > most else "open"
