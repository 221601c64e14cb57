"""Decide whether a metric of two runs is comparable, or which condition differs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from llmtrack import metrics as schema
from llmtrack.tracked.run import ENV, MODEL_DIGESTS, REFERENCE_DIGESTS, Run
from llmtrack.tracked.runs import keys
from llmtrack.tracking.environment import NOT_SPEED

# The perplexity convention: values of different conventions are never compared.
CONVENTION = schema.params_with("convention")
# What was scored: metrics per text need the same text, metrics per token also the same tokens. Runs of older versions
# only have the counts.
_SCORED_TEXT = ("bytes_scored", "words_scored", "scored_text_digest")
_SCORED_TOKENS = ("tokens_scored", "scored_tokens_digest")
# Params behind a workload's digest; the total distinguishes prompts whose longest are equal.
WORK = (*schema.params_with("work"), "prompt_tokens_total", *CONVENTION)

# Facts about the model, not the machine.
_NOT_MACHINE = NOT_SPEED | {*MODEL_DIGESTS, *REFERENCE_DIGESTS, "revision"}
# The reference of a comparison metric.
_REFERENCE = ("reference", "reference_tokens", *(ENV + name for name in REFERENCE_DIGESTS))
_MOST_NAMED = 3


def why_not(
    baseline: Run,
    candidate: Run,
    metric: str,
    across_environments: bool = False,
    across_work: bool = False,
) -> str:
    """Explain why a metric of two runs is not comparable, naming the differences; return an empty text if it is.

    Args:
        across_environments: allow speed and memory of different machines or versions.
        across_work: allow speed and memory of different work, if that is the question.
    """
    entry = schema.metric(metric)
    if entry.of_text and (found := _other_text(baseline, candidate, metric)):
        return found
    if "reference" in entry.needs and (found := _differing(baseline, candidate, _REFERENCE)):
        return f"compared with different references ({found})"
    if "work" in entry.needs and not across_work and baseline.workload_id != candidate.workload_id:
        found = _differing(baseline, candidate, WORK) or "the texts of the prompts"
        return f"the workloads differ ({found})"
    if "machine" in entry.needs and not across_environments and baseline.environment_id != candidate.environment_id:
        return f"measured in different environments ({differing_facts(baseline, candidate)})"
    return ""


def scored_key(run: Run, metric: str) -> tuple[str, ...]:
    """Return the values that must be equal for a quality metric of two runs to be comparable.

    Besides the convention, metrics per text (bits per byte, word perplexity) depend on the text covered by the scored
    tokens, and metrics per token (loss, perplexity) also on these tokens.
    """
    return keys([run], _scored_by(run, metric))[0]


def _scored_by(run: Run, metric: str) -> tuple[str, ...]:
    """Return the names of the values that a quality metric depends on.

    Runs of older versions have no digests: one model then means one tokenizer, and counts must identify the text.
    """
    needs = schema.metric(metric).needs
    if "tokens" not in needs and "text" not in needs:
        return CONVENTION
    names = _SCORED_TOKENS + _SCORED_TEXT if "tokens" in needs else _SCORED_TEXT
    digests = [name for name in names if name.endswith("_digest")]
    return (
        *CONVENTION,
        *names,
        *(("model_id",) if not all(map(run.has, digests)) else ()),
    )


def _other_text(baseline: Run, candidate: Run, metric: str) -> str:
    if found := _differing(baseline, candidate, CONVENTION):
        return f"scored by different conventions ({found})"
    differing = [name for name in _scored_by(baseline, metric) if not baseline.agrees(candidate, name)]
    if not differing:
        return ""
    found = _differing(baseline, candidate, differing)
    if differing == ["model_id"]:
        return f"runs that do not say which text was scored, of different models ({found}): score them again"
    alternative = "compare bits_per_byte or word_perplexity"
    if not set(differing) & set(_SCORED_TEXT):
        return f"the tokenizers differ ({found}): {alternative}"
    both = bool(set(differing) & set(_SCORED_TOKENS))
    what = "the tokenizers and the scored text differ" if both else "the scored text differs"
    remedy = f"{alternative}, scored" if "tokens" in schema.metric(metric).needs else "score"
    return f"{what} ({found}): {remedy} with bos_rule=model and a max_length that cuts nothing"


def differing_facts(baseline: Run, candidate: Run) -> str:
    """Name the machine and version facts in which two runs differ."""
    known = sorted({*baseline.environment, *candidate.environment} - _NOT_MACHINE)
    facts = [ENV + name for name in known]
    return _differing(baseline, candidate, facts) or _differing(baseline, candidate, ["environment_id"])


def _differing(baseline: Run, candidate: Run, names: Iterable[str]) -> str:
    found = [
        f"{name.removeprefix(ENV)}: {_shown(baseline.get(name))} against {_shown(candidate.get(name))}"
        for name in names
        if not baseline.agrees(candidate, name)
    ]
    more = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _shown(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:g}" if isinstance(value, float) else str(value)
