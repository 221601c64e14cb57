"""May a metric of two runs be compared? If not, which condition differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from llmtrack.decide import kinds
from llmtrack.tracking.environment import NOT_SPEED

if TYPE_CHECKING:
    import pandas as pd

# The convention of a perplexity: figures of two conventions are never compared.
CONVENTION = ("corpus_digest", "protocol", "max_length", "stride", "bos_rule", "max_tokens")
# What a workload's digest is made of, as far as params tell it.
WORK = (
    "task",
    "prompts",
    "prompt_tokens",
    "prompt_tokens_total",
    "prompt_share",
    "max_prompt_tokens",
    "max_new_tokens",
    "ignore_eos",
    *CONVENTION,
)

_ENV = "env."
# Facts of the model and not of the machine.
_NOT_MACHINE = NOT_SPEED | {"weights_digest", "config_digest", "tokenizer_digest", "revision"}
_MOST_NAMED = 3


def why_not(baseline: pd.Series, candidate: pd.Series, metric: str, across_environments: bool = False) -> str:
    """Return why a metric of two runs cannot be compared, naming what differs; empty if it can.

    Args:
        baseline: a row of `llmtrack.runs`.
        candidate: another.
        metric: name of the metric.
        across_environments: compare speed and memory of different machines or versions too.
    """
    needs = kinds.needs(metric)
    if needs == "text":
        return _other_text(baseline, candidate, metric)
    if needs == "work and machine" and not _equal(baseline, candidate, "workload_id"):
        found = _differing(baseline, candidate, WORK) or "the texts of the prompts"
        return f"the workloads differ ({found})"
    if needs != "nothing" and not across_environments and not _equal(baseline, candidate, "environment_id"):
        return f"measured in different environments ({_differing_facts(baseline, candidate)})"
    return ""


def _other_text(baseline: pd.Series, candidate: pd.Series, metric: str) -> str:
    found = _differing(baseline, candidate, CONVENTION)
    if found:
        return f"scored by different conventions ({found})"
    if metric in kinds.PER_TOKEN and not _equal(baseline, candidate, "tokens_scored"):
        counts = _differing(baseline, candidate, ("tokens_scored",))
        return f"the tokenizers differ ({counts}): compare bits_per_byte or word_perplexity"
    return ""


def _differing_facts(baseline: pd.Series, candidate: pd.Series) -> str:
    names = [str(name) for name in baseline.index if str(name).startswith(_ENV)]
    facts = [name for name in names if name.removeprefix(_ENV) not in _NOT_MACHINE]
    return _differing(baseline, candidate, facts) or _differing(baseline, candidate, ["environment_id"])


def _differing(baseline: pd.Series, candidate: pd.Series, names: Iterable[str]) -> str:
    found = [
        f"{name.removeprefix(_ENV)}: {_shown(baseline.get(name))} against {_shown(candidate.get(name))}"
        for name in names
        if not _equal(baseline, candidate, name)
    ]
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _equal(baseline: pd.Series, candidate: pd.Series, name: str) -> bool:
    one, other = baseline.get(name), candidate.get(name)
    if _missing(one) or _missing(other):
        return _missing(one) and _missing(other)
    return bool(one == other)


def _missing(value: Any) -> bool:
    import pandas as pd

    return value is None or bool(pd.isna(value))


def _shown(value: Any) -> str:
    if _missing(value):
        return "not given"
    return f"{value:g}" if isinstance(value, float) else str(value)
