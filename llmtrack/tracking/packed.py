"""Pack tags that no search needs into two JSON tags that MLflow's pages do not show, and unpack them.

One has the facts of the environment, which many runs share, the other the run's own values. Older versions had a tag per
value, or `llmtrack.environment`; a value that does not fit still has its own tag.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from llmtrack import metrics as schema
from llmtrack.metrics import (
    DETAILS_TAG,
    DIGEST_PREFIX,
    ENV_TAG_PREFIX,
    ENVIRONMENT_TAG,
    SPREAD_PREFIX,
    SPREAD_STATS,
    spread_key,
)
from llmtrack.tracking.limits import MAX_TAG_VALUE

SPREAD, OLDER_ENVIRONMENT = "llmtrack.spread", "llmtrack.environment"
ARTIFACT = "environment.json"

_PREFIX = "llmtrack."
_SEARCHED = frozenset(ENV_TAG_PREFIX + name for name in schema.SEARCHED_FACTS)
_PACKED = frozenset(tag.name for tag in schema.TAGS if tag.packed)
WHILE_RUNNING = frozenset(tag.name for tag in schema.TAGS if tag.while_running)
"""Tags that a run loses when it ends."""
# Tags of older versions, by the column that has the same value.
_ELSEWHERE = {"llmtrack.scenario": "scenario", "llmtrack.version": "env.llmtrack_version"}


def pack(tags: Mapping[str, str], running: bool = False) -> dict[str, str]:
    """Convert the tags of a record to those of its run in MLflow.

    Args:
        running: keep the tags `WHILE_RUNNING`, by which others know the process that writes the run.
    """
    own: dict[str, str] = {}
    facts: dict[str, str] = {}
    # The tags of each value, which are restored if it does not fit.
    groups: dict[str, dict[str, str]] = {}
    for key, text in tags.items():
        if key.startswith(ENV_TAG_PREFIX):
            facts[key] = str(text)
            if key in _SEARCHED:
                own[key] = text
        elif key.startswith(DIGEST_PREFIX):
            groups.setdefault("digest", {})[key] = text
        elif key in _PACKED or key == SPREAD:
            groups[key.removeprefix(_PREFIX)] = {key: text}
        elif key not in _ELSEWHERE and (running or key not in WHILE_RUNNING):
            own[key] = text
    details = {name: _value(name, group) for name, group in groups.items()}
    while len(text := _json(details)) > MAX_TAG_VALUE:
        largest = max(details, key=lambda name: len(_json(details[name])))
        del details[largest]
        own |= groups[largest]
    if details:
        own[DETAILS_TAG] = text
    while len(text := _json(_without_prefix(facts, ENV_TAG_PREFIX))) > MAX_TAG_VALUE:
        own.update([facts.popitem()])
    return {**own, ENVIRONMENT_TAG: text} if facts else own


def unpack(text: str) -> Mapping[str, Any]:
    """Parse the tag of a run's own values; empty if invalid."""
    try:
        values = json.loads(text)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


@lru_cache(maxsize=1024)
def facts_of(text: str) -> Mapping[str, str]:
    """Parse the tag of the environment; empty if invalid."""
    return {str(name): str(value) for name, value in unpack(text).items()}


def packed_only(tags: Mapping[str, str]) -> dict[str, str]:
    """Select the tags that runs no longer have individually, so that MLflow cannot search for them."""
    return {key: value for key, value in tags.items() if value and column(key)}


def column(tag: str) -> str:
    """Return the column of a tag that runs no longer have individually; empty for any other tag."""
    if tag.startswith(ENV_TAG_PREFIX):
        return "" if tag in _SEARCHED else f"env.{tag.removeprefix(ENV_TAG_PREFIX)}"
    if tag.startswith(DIGEST_PREFIX):
        return tag.removeprefix(DIGEST_PREFIX)
    return tag.removeprefix(_PREFIX) if tag in _PACKED else _ELSEWHERE.get(tag, "")


def artifact(tags: Mapping[str, str]) -> dict[str, str]:
    """Lay out the facts as a readable JSON artifact, by its path; empty without facts."""
    facts = {key: value for key, value in tags.items() if key.startswith(ENV_TAG_PREFIX)}
    text = json.dumps(_without_prefix(facts, ENV_TAG_PREFIX), indent=1, sort_keys=True, ensure_ascii=False)
    return {ARTIFACT: text + "\n"} if facts else {}


def split_spread(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Split metrics into values and a JSON tag of their spread.

    The intervals of metrics that tables show stay metrics, for MLflow's own charts and searches; nothing reads them back.
    If the tag is too small, the last metrics are left out; `samples.json` has them.
    """
    own = {key: value for key, value in metrics.items() if not key.startswith(SPREAD_PREFIX)}
    spreads: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, dot, stat = key.removeprefix(SPREAD_PREFIX).rpartition(".")
        if key not in own and dot and math.isfinite(value):
            spreads.setdefault(name, {})[stat] = value
    for name, spread in spreads.items():
        # A single value has no interval.
        if schema.metric(name).has_interval and spread.get("n", 0) > 1:
            ends = schema.INTERVAL_ENDS.items()
            own |= {schema.interval_key(name, end): spread[stat] for end, stat in ends if stat in spread}
    while len(text := _json(spreads)) > MAX_TAG_VALUE:
        spreads.popitem()
    return own, {SPREAD: text} if spreads else {}


def join_spread(spreads: Any) -> dict[str, float]:
    """Convert the parsed JSON of spreads back to metrics; empty if invalid."""
    try:
        return {
            spread_key(name, stat): float(spread[stat])
            for name, spread in spreads.items()
            for stat in SPREAD_STATS
            if stat in spread
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _value(name: str, group: Mapping[str, str]) -> Any:
    if name == "digest":
        return _without_prefix(group, DIGEST_PREFIX)
    (text,) = group.values()
    return unpack(text) if _PREFIX + name == SPREAD else text


def _without_prefix(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in tags.items()}


def _json(values: Any) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)
