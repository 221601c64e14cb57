"""Build tracked keys from the names of metrics, params and facts."""

from __future__ import annotations

SPREAD_STATS = ("n", "ci_low", "ci_high", "mean", "sd", "p90", "p99")
SPREAD_PREFIX = "spread/"
INTERVAL_ENDS = {"low": "ci_low", "high": "ci_high"}
"""Suffixes of a 95 % interval's ends as metrics of their own, and the statistics that they repeat."""
SERIES_PREFIX = "series/"
SYSTEM_PREFIX = "system/"
"""Prefix of series under MLflow's own names, which its page of system metrics shows."""
ENV_TAG_PREFIX = "llmtrack.env."
SEARCHED_FACTS = ("cpu", "git_branch", "gpu")
"""Environment facts with their own tags, for searching."""
REFERENCE_TAG_PREFIX = "reference_"
SETTING_PREFIX = "cfg."
ASKED_TAG = "llmtrack.asked"
ALIAS_PREFIX = "llmtrack.alias."
DIGEST_PREFIX = "llmtrack.digest."
# MLflow's pages show no tag with its own prefix.
ENVIRONMENT_TAG = "mlflow.llmtrack.environment"
DETAILS_TAG = "mlflow.llmtrack.details"


def is_digest(name: str) -> bool:
    """Return whether a condition is a hash, stored as a tag to keep it out of plots and columns."""
    return name.endswith("_digest")


def spread_key(metric: str, stat: str) -> str:
    """Return the key of a statistic of a sampled metric."""
    return f"{SPREAD_PREFIX}{metric}.{stat}"


def interval_key(metric: str, end: str) -> str:
    """Return the key of an end of a metric's 95 % interval, for MLflow's charts and searches."""
    return f"{metric}.{end}"


def series_key(name: str) -> str:
    """Return the key of a metric with a value per step; MLflow's system metrics keep their names."""
    return name if is_series(name) else f"{SERIES_PREFIX}{name}"


def is_series(key: str) -> bool:
    """Return whether a metric has a value per step, so that its last value does not describe the run."""
    return key.startswith((SERIES_PREFIX, SYSTEM_PREFIX))
