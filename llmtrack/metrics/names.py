"""How keys of what is tracked are made of the names of metrics, params and facts."""

from __future__ import annotations

SPREAD_STATS = ("n", "ci_low", "ci_high", "mean", "sd", "p90", "p99")
SPREAD_PREFIX = "spread/"
SERIES_PREFIX = "series/"
ENV_TAG_PREFIX = "llmtrack.env."
SEARCHED_FACTS = ("cpu", "git_branch", "git_commit", "gpu", "node")
"""Facts of the environment that are tags of their own, since runs are searched by them."""
REFERENCE_TAG_PREFIX = "reference_"
SETTING_PREFIX = "cfg."
ASKED_TAG = "llmtrack.asked"
ALIAS_PREFIX = "llmtrack.alias."
DIGEST_PREFIX = "llmtrack.digest."


def is_digest(name: str) -> bool:
    """Return whether a condition is a hash: kept as a tag, since nobody wants it as an axis or a column of a plot."""
    return name.endswith("_digest")


def spread_key(metric: str, stat: str) -> str:
    """Return the key under which one statistic of a sampled metric is tracked."""
    return f"{SPREAD_PREFIX}{metric}.{stat}"


def series_key(name: str) -> str:
    """Return the key under which a metric with a value per step is tracked."""
    return f"{SERIES_PREFIX}{name}"
