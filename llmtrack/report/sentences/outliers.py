"""Find runs of a study with outlying latency, and the likely cause."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from llmtrack.decide.differences import Difference
from llmtrack.decide.noise_floor import with_context
from llmtrack.decide.verdicts import difference_between, measure_command
from llmtrack.tracked.runs import Runs

OUTLIER_FACTOR = 1.5
# A prompt is long above this multiple of the median number of tokens, and short below the inverse.
LONG_PROMPT = 2.0
# Share of the call from which the prefill dominates it.
HIGH_SHARE = 0.5


def prefill_shares(runs: Runs) -> list[float]:
    """Return the share of each run's call until the first token (0 to 1); NaN if unknown."""
    first_tokens, totals = runs.values("time_to_first_token_ms"), runs.values("total_latency_s")
    return [first / 1000 / total for first, total in zip(first_tokens, totals, strict=True)]


@dataclass(frozen=True)
class Outlier:
    """A prompt with outlying latency.

    Attributes:
        ratios: outlying ms/token and TTFT as multiples of the median of all prompts.
        cause: key of `CAUSES`.
        prefill_share: share of the call until the first token.
        step_ratio: inter-token latency as a multiple of the median.
        inconclusive: why; empty if it is conclusive.
        repeats_needed: repeats of each prompt needed to be conclusive; else 0.
    """

    scenario: str
    ratios: dict[str, float]
    cause: str
    prefill_share: float
    step_ratio: float
    inconclusive: str = ""
    repeats_needed: int = 0


CAUSES = {
    "long_prefill": "the prompt is long: the prefill is {share} of the call (median of all {median}); a decode step "
    "takes {step} the median",
    "long_cache": "decoding itself is slower: a step takes {step} the median behind the longer KV cache, and the "
    "prefill is only {share} of the call (median of all {median})",
    "short_prefill": "the prompt is short: the prefill is {share} of the call (median of all {median})",
    "unexplained": "the prompt's length does not explain it (prefill {share} of the call, median of all {median}; a "
    "decode step takes {step} the median): noise or another program, see the warnings and repeat",
}
WATCHED = {"avg_latency_per_token_ms": "ms/token", "time_to_first_token_ms": "TTFT"}


def outliers(runs: Runs) -> list[Outlier]:
    """Find the runs that differ from the median of all by more than a factor, in either direction.

    Runs not significantly different from the median run (`llmtrack.decide.verdicts`) are left out.
    """
    shares = prefill_shares(runs)
    medians = {
        key: _median([run.get(key) for run in runs])
        for key in (*WATCHED, "inter_token_latency_ms", "prompt_tokens_total")
    }
    runs = with_context(runs)
    differing = {key: _against_median_run(runs, key) for key in WATCHED}
    result = []
    for run, share in zip(runs, shares, strict=True):
        outlying = {
            key: differing[key][run.run_id]
            for key in WATCHED
            if run.run_id in differing[key]
            and not 1 / OUTLIER_FACTOR <= run.metrics[key] / medians[key] <= OUTLIER_FACTOR
        }
        if not outlying:
            continue
        ratios = {WATCHED[key]: run.metrics[key] / medians[key] for key in outlying}
        step_ratio = 1.0
        if run.has("inter_token_latency_ms"):
            step_ratio = run.metrics["inter_token_latency_ms"] / medians["inter_token_latency_ms"]
        length = run.params["prompt_tokens_total"] / medians["prompt_tokens_total"]
        cause = _cause(max(ratios.values()) > 1, length, share, _median(shares), step_ratio)
        inconclusive = [difference for difference in outlying.values() if not difference.conclusive]
        words = inconclusive[0].words if inconclusive else ""
        needed = max((difference.repeats_needed for difference in inconclusive), default=0)
        result.append(Outlier(run.scenario, ratios, cause, share, step_ratio, words, needed))
    return result


def _against_median_run(runs: Runs, key: str) -> dict[str, Difference]:
    """Return the significant and inconclusive differences of runs from the median run, by run id."""
    known = sorted(runs.where(lambda run: run.has(key)), key=lambda run: run.metrics[key])
    if not known:
        return {}
    middle = known[(len(known) - 1) // 2]
    others = (run for run in known if run is not middle)
    differences = ((run.run_id, difference_between(middle, run, key, across_work=True)) for run in others)
    return {run_id: difference for run_id, difference in differences if difference.verdict != "same"}


def _median(values: Sequence[float | None]) -> float:
    return median([value for value in values if value is not None and value == value] or [math.nan])


def outlier_lines(done: Runs) -> list[str]:
    """Describe the outliers, one line per cause with the supporting numbers."""
    all_outliers = outliers(done)
    if not all_outliers:
        return [f"No prompt lies more than {OUTLIER_FACTOR:g}x from the median of all, up or down, beyond noise."]
    median_share = f"{_median(prefill_shares(done)):.0%}"
    lines = []
    for cause, text in CAUSES.items():
        of_cause = [outlier for outlier in all_outliers if outlier.cause == cause]
        if of_cause:
            names = ", ".join(map(_named, of_cause))
            share = _range([outlier.prefill_share for outlier in of_cause], "{:.0%}")
            step = _range([outlier.step_ratio for outlier in of_cause], "{:.2g}x")
            lines.append(f"Outliers: {names}: {text.format(share=share, median=median_share, step=step)}.")
    if any(outlier.inconclusive for outlier in all_outliers):
        command = measure_command(done[0], max(outlier.repeats_needed for outlier in all_outliers))
        lines.append(f"Inconclusive; to settle it run: {command}")
    return lines


def _named(outlier: Outlier) -> str:
    ratios = ", ".join(f"{ratio:.2g}x {title}" for title, ratio in outlier.ratios.items())
    return f"{outlier.scenario} ({ratios}{f'; inconclusive: {outlier.inconclusive}' if outlier.inconclusive else ''})"


def _cause(slower: bool, length: float, share: float, median_share: float, step_ratio: float) -> str:
    """Choose the key of `CAUSES` that fits the numbers; `length` is a multiple of the median prompt's."""
    if not slower:
        return "short_prefill" if length <= 1 / LONG_PROMPT else "unexplained"
    if length >= LONG_PROMPT and (share >= HIGH_SHARE or share >= OUTLIER_FACTOR * median_share):
        return "long_prefill"
    if length >= LONG_PROMPT and step_ratio > OUTLIER_FACTOR:
        return "long_cache"
    return "unexplained"


def _range(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return " to ".join(ends)
