"""Keep the spread of a run's metrics as one tag: as metrics of their own they would fill MLflow's page of a run's charts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from llmtrack.metrics import SPREAD_PREFIX, SPREAD_STATS, spread_key
from llmtrack.tracking.limits import MAX_TAG_VALUE

TAG = "llmtrack.spread"


def split(metrics: Mapping[str, float]) -> tuple[dict[str, float], dict[str, str]]:
    """Return metrics without those of spread, and the tag that holds these: JSON, by metric its statistics.

    What there is no room for in a tag is left out, the last metrics first; `samples.json` has it.
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
    """Return the metrics of spread that a run's tag holds, as older versions have them among the metrics; none if it is broken."""
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
