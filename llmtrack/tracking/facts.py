"""Keep the facts of a run's environment as one tag: as tags of their own they push the answer off MLflow's page of a run."""

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
    """Return tags with the facts of the environment in one of them, as JSON; older versions had a tag for each.

    A fact for which there is no room in it stays a tag.
    """
    own = {key: value for key, value in tags.items() if not key.startswith(ENV_TAG_PREFIX)}
    facts = {key: str(value) for key, value in tags.items() if key not in own}
    kept = {key: value for key, value in facts.items() if key in SEARCHED}
    while len(text := _text(facts)) > MAX_TAG_VALUE:
        kept.update([facts.popitem()])
    return {**own, **kept, TAG: text} if facts else {**own, **kept}


def unsearched(tags: Mapping[str, str]) -> dict[str, str]:
    """Return those of the tags that runs have no tag of their own for any more."""
    named = {key: value for key, value in tags.items() if isinstance(key, str) and value}
    return {key: value for key, value in named.items() if key.startswith(ENV_TAG_PREFIX) and key not in SEARCHED}


def column(tag: str) -> str:
    """Return the column that a fact is read back as."""
    return f"env.{tag.removeprefix(ENV_TAG_PREFIX)}"


def artifact(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the facts as the artifact that a person reads, by its path; nothing where none are known."""
    facts = {key.removeprefix(ENV_TAG_PREFIX): value for key, value in tags.items() if key.startswith(ENV_TAG_PREFIX)}
    return {ARTIFACT: json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False) + "\n"} if facts else {}


@lru_cache(maxsize=1024)
def joined(text: str) -> Mapping[str, str]:
    """Return the facts that the tag's value holds, by the tags that older versions kept them in; none if it is broken."""
    try:
        return {ENV_TAG_PREFIX + str(name): str(value) for name, value in json.loads(text).items()}
    except (ValueError, AttributeError):
        return {}


def _text(facts: Mapping[str, str]) -> str:
    named = {key.removeprefix(ENV_TAG_PREFIX): value for key, value in facts.items()}
    return json.dumps(named, separators=(",", ":"), ensure_ascii=False)
