"""Which metrics of two runs are comparable: the same work, machine and versions, scored text and reference."""

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
_WORK = (*schema.params_with("work"), "prompt_tokens_total", *CONVENTION)
# Facts about the model, not the machine.
_NOT_MACHINE = NOT_SPEED | {*MODEL_DIGESTS, *REFERENCE_DIGESTS, "revision"}
# The reference of a comparison metric.
_REFERENCE = ("reference", "reference_tokens", *(ENV + name for name in REFERENCE_DIGESTS))
_MOST_NAMED = 3


def why_not_comparable(
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
    if entry.of_text and (reason := _why_scored_differently(baseline, candidate, metric)):
        return reason
    if "reference" in entry.needs and (differing := _differing(baseline, candidate, _REFERENCE)):
        return f"compared with different references ({differing})"
    if "work" in entry.needs and not across_work and baseline.workload_id != candidate.workload_id:
        return f"the workloads differ ({_differing(baseline, candidate, _WORK) or 'the texts of the prompts'})"
    if "machine" in entry.needs and not across_environments and baseline.environment_id != candidate.environment_id:
        return f"measured in different environments ({differing_facts(baseline, candidate)})"
    return ""


def relative_perplexity(baseline: Run | None, run: Run) -> tuple[float | None, str]:
    """Return a run's perplexity as a multiple of the baseline's or, without that, of the reference's, and whose it is.

    The baseline's is preferred, since only the beginning of the text may have been compared with the reference. None if
    neither is known.
    """
    if (
        baseline
        and baseline.has("perplexity")
        and baseline.metrics["perplexity"] > 0
        and run.has("perplexity")
        and not why_not_comparable(baseline, run, "perplexity")
    ):
        return run.metrics["perplexity"] / baseline.metrics["perplexity"], "baseline"
    return run.number("reference_perplexity_ratio"), "reference"


def scored_key(run: Run, metric: str) -> tuple[str, ...]:
    """Return the values that must be equal for a quality metric of two runs to be comparable.

    Besides the convention, metrics per text (bits per byte, word perplexity) depend on the text covered by the scored
    tokens, and metrics per token (loss, perplexity) also on these tokens.
    """
    return keys([run], _scoring_names(run, metric))[0]


def differing_facts(baseline: Run, candidate: Run) -> str:
    """Name the machine and version facts in which two runs differ."""
    facts = sorted({*baseline.environment, *candidate.environment} - _NOT_MACHINE)
    return _differing(baseline, candidate, [ENV + name for name in facts]) or _differing(
        baseline, candidate, ["environment_id"]
    )


def _scoring_names(run: Run, metric: str) -> tuple[str, ...]:
    """Return the names of the values that a quality metric depends on.

    Runs of older versions have no digests: one model then means one tokenizer, and counts must identify the text.
    """
    needs = schema.metric(metric).needs
    if "tokens" not in needs and "text" not in needs:
        return CONVENTION
    names = _SCORED_TOKENS + _SCORED_TEXT if "tokens" in needs else _SCORED_TEXT
    has_digests = all(run.has(name) for name in names if name.endswith("_digest"))
    return (*CONVENTION, *names, *(() if has_digests else ("model_id",)))


def _why_scored_differently(baseline: Run, candidate: Run, metric: str) -> str:
    if differing := _differing(baseline, candidate, CONVENTION):
        return f"scored by different conventions ({differing})"
    names = [name for name in _scoring_names(baseline, metric) if not baseline.agrees(candidate, name)]
    if not names:
        return ""
    differing = _differing(baseline, candidate, names)
    if names == ["model_id"]:
        return f"runs that do not say which text was scored, of different models ({differing}): score them again"
    alternative = "compare bits_per_byte or word_perplexity"
    if not set(names) & set(_SCORED_TEXT):
        return f"the tokenizers differ ({differing}): {alternative}"
    both = bool(set(names) & set(_SCORED_TOKENS))
    subject = "the tokenizers and the scored text differ" if both else "the scored text differs"
    remedy = f"{alternative}, scored" if "tokens" in schema.metric(metric).needs else "score"
    return f"{subject} ({differing}): {remedy} with bos_rule=model and a max_length that cuts nothing"


def _differing(baseline: Run, candidate: Run, names: Iterable[str]) -> str:
    """List the values in which two runs differ: `threads: 2 against 4`; empty if there are none."""
    differing = [
        f"{name.removeprefix(ENV)}: {_value_text(baseline.get(name))} against {_value_text(candidate.get(name))}"
        for name in names
        if not baseline.agrees(candidate, name)
    ]
    more = len(differing) - _MOST_NAMED
    return ", ".join(differing[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _value_text(value: Any) -> str:
    if value is None:
        return "not given"
    return f"{value:g}" if isinstance(value, float) else str(value)
