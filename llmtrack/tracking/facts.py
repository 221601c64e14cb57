"""Store environment facts in one tag: separate tags would clutter MLflow's run page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache

from llmtrack.metrics import ENV_TAG_PREFIX, SEARCHED_FACTS
from llmtrack.tracking.limits import MAX_TAG_VALUE

TAG = "llmtrack.environment"
ARTIFACT = "environment.json"

SEARCHED = frozenset(ENV_TAG_PREFIX + name for name in SEARCHED_FACTS)


def split(tags: Mapping[str, str]) -> dict[str, str]:
    """Move the environment facts of tags into one JSON tag; older versions had a tag per fact.

    Facts that do not fit remain tags.
    """
    own = {key: value for key, value in tags.items() if not key.startswith(ENV_TAG_PREFIX)}
    facts = {key: str(value) for key, value in tags.items() if key not in own}
    kept = {key: value for key, value in facts.items() if key in SEARCHED}
    while len(text := _text(facts)) > MAX_TAG_VALUE:
        kept.update([facts.popitem()])
    return {**own, **kept, TAG: text} if facts else {**own, **kept}


def unsearched(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the given fact tags that runs no longer have individually."""
    named = {key: value for key, value in tags.items() if isinstance(key, str) and value}
    return {key: value for key, value in named.items() if key.startswith(ENV_TAG_PREFIX) and key not in SEARCHED}


def column(tag: str) -> str:
    """Return the column of a fact."""
    return f"env.{tag.removeprefix(ENV_TAG_PREFIX)}"


def artifact(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the facts as a readable JSON artifact by path; empty if there are none."""
    facts = {key.removeprefix(ENV_TAG_PREFIX): value for key, value in tags.items() if key.startswith(ENV_TAG_PREFIX)}
    return {ARTIFACT: json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"} if facts else {}


@lru_cache(maxsize=1024)
def joined(text: str) -> Mapping[str, str]:
    """Parse the tag into the per-fact tags of older versions; empty if invalid."""
    try:
        return {ENV_TAG_PREFIX + str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        return {}


def _text(facts: Mapping[str, str]) -> str:
    named = {key.removeprefix(ENV_TAG_PREFIX): value for key, value in facts.items()}
    return json.dumps(named, separators=(",", ":"), ensure_ascii=False)
