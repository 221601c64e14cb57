"""Store the spread of a run's metrics in one tag: separate metrics would clutter MLflow's charts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from llmtrack.metrics import SPREAD_PREFIX, SPREAD_STATS, spread_key
from llmtrack.tracking.limits import MAX_TAG_VALUE

TAG = "llmtrack.spread"


def split(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Separate the spread from the metrics; return both, the spread as a JSON tag.

    If the tag is too small, the last metrics are left out; `samples.json` has them.
    """
    own = {key: value for key, value in metrics.items() if not key.startswith(SPREAD_PREFIX)}
    spreads: dict[str, dict[str, float]] = {}
    for key, value in metrics.items():
        name, dot, stat = key.removeprefix(SPREAD_PREFIX).rpartition(".")
        if key not in own and dot and math.isfinite(value):
            spreads.setdefault(name, {})[stat] = value
    while len(text := json.dumps(spreads, separators=(",", ":"))) > MAX_TAG_VALUE:
        spreads.popitem()
    return own, {TAG: text} if spreads else {}


def joined(tags: Mapping[str, str]) -> dict[str, float]:
    """Parse the tag into the spread metrics of older versions; empty if invalid."""
    try:
        spreads = json.loads(tags.get(TAG, "{}"))
        return {
            spread_key(name, stat): float(found[stat])
            for name, found in spreads.items()
            for stat in SPREAD_STATS
            if stat in found
        }
    except (ValueError, TypeError, AttributeError):
        return {}
