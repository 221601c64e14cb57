"""Names, units, directions and meanings of all params, metrics and tags.

All are rows of `table.py`, whose fields `entry.py` explains; `docs/metrics.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from llmtrack.metrics.entry import Metric as Metric
from llmtrack.metrics.entry import Param as Param
from llmtrack.metrics.entry import Role as Role
from llmtrack.metrics.entry import Shown as Shown
from llmtrack.metrics.entry import decimals as decimals
from llmtrack.metrics.names import ALIAS_PREFIX as ALIAS_PREFIX
from llmtrack.metrics.names import ASKED_TAG as ASKED_TAG
from llmtrack.metrics.names import DETAILS_TAG as DETAILS_TAG
from llmtrack.metrics.names import DIGEST_PREFIX as DIGEST_PREFIX
from llmtrack.metrics.names import ENV_TAG_PREFIX as ENV_TAG_PREFIX
from llmtrack.metrics.names import ENVIRONMENT_TAG as ENVIRONMENT_TAG
from llmtrack.metrics.names import INTERVAL_ENDS as INTERVAL_ENDS
from llmtrack.metrics.names import REFERENCE_TAG_PREFIX as REFERENCE_TAG_PREFIX
from llmtrack.metrics.names import SEARCHED_FACTS as SEARCHED_FACTS
from llmtrack.metrics.names import SERIES_PREFIX as SERIES_PREFIX
from llmtrack.metrics.names import SETTING_PREFIX as SETTING_PREFIX
from llmtrack.metrics.names import SPREAD_PREFIX as SPREAD_PREFIX
from llmtrack.metrics.names import SPREAD_STATS as SPREAD_STATS
from llmtrack.metrics.names import SYSTEM_PREFIX as SYSTEM_PREFIX
from llmtrack.metrics.names import interval_key as interval_key
from llmtrack.metrics.names import is_digest as is_digest
from llmtrack.metrics.names import is_series as is_series
from llmtrack.metrics.names import series_key as series_key
from llmtrack.metrics.names import spread_key as spread_key
from llmtrack.metrics.table import METRICS as METRICS
from llmtrack.metrics.table import PARAMS as PARAMS
from llmtrack.metrics.table import SPIKE as SPIKE
from llmtrack.metrics.table import TAGS as TAGS

_HIDDEN = Shown("")
Described = TypeVar("Described", Metric, Param)

METRIC_BY_NAME = {metric.name: metric for metric in METRICS}
PARAM_BY_NAME = {param.name: param for param in PARAMS}
INTERVAL_KEYS = frozenset(
    interval_key(metric.name, end) for metric in METRICS if metric.has_interval for end in INTERVAL_ENDS
)
"""Metrics of MLflow that repeat a spread; readers take it from the spread."""


def metric(name: str) -> Metric:
    """Look up a metric's entry, with safe defaults for an unknown one."""
    return METRIC_BY_NAME.get(name) or Metric(name, "-", "-", "not known", "not known", timed=True)


def format_metric(name: str, value: Any) -> str:
    """Format a metric's value as in tables."""
    return (metric(name).shown or _HIDDEN).render(value)


def role(param: str) -> Role:
    """Look up a param's role; unknown params count as configuration."""
    return PARAM_BY_NAME[param].role if param in PARAM_BY_NAME else Param.role


def params_with(*roles: Role) -> tuple[str, ...]:
    """Return the known params with the given roles."""
    return tuple(param.name for param in PARAMS if param.role in roles)


def in_column_order(entries: Iterable[Described]) -> list[Described]:
    """Sort metrics or params by the order of their columns."""
    return sorted(entries, key=lambda entry: (entry.shown or _HIDDEN).order)
