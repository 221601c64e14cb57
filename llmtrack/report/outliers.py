"""Runs of one study that stand out in latency, and what their numbers say is the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from llmtrack.report import reading as say

if TYPE_CHECKING:
    import pandas as pd

OUTLIER_FACTOR = 1.5
# A prompt is long from so many times the median prompt's tokens, and short below the inverse.
LONG_PROMPT = 2.0
# From this share of the call on the prefill is most of it.
HIGH_SHARE = 0.5


def prefill_shares(runs: pd.DataFrame) -> pd.Series:
    """Return the share of the call until the first token, from 0 to 1."""
    share: pd.Series = runs["time_to_first_token_ms"] / 1000 / runs["total_latency_s"]
    return share


@dataclass(frozen=True)
class Outlier:
    """A prompt whose call stands out.

    Attributes:
        scenario: name of the scenario.
        ratios: ms/token and TTFT as multiples of the median of all prompts, those that stand out.
        cause: key of `CAUSES`: what the numbers point to.
        prefill_share: share of the call until the first token.
        step_ratio: inter-token latency as a multiple of the median of all.
        single: measured once, so that nothing is known of its noise.
    """

    scenario: str
    ratios: dict[str, float]
    cause: str
    prefill_share: float
    step_ratio: float
    single: bool = False


CAUSES = {
    "long_prefill": "the prompt is long: the prefill is {share} of the call (median of all {median}); a decode step "
    "takes {step} the median",
    "long_cache": "decoding itself is slower: a step takes {step} the median behind the longer KV cache, and the "
    "prefill is only {share} of the call (median of all {median})",
    "short_prefill": "the prompt is short: the prefill is {share} of the call (median of all {median})",
    "unexplained": "the prompt's length does not explain it (prefill {share} of the call, median of all {median}; a "
    "decode step takes {step} the median): noise or another program, see the warnings and repeat",
}
REPEATS = "spread/total_latency_s.n"
WATCHED = {"avg_latency_per_token_ms": "ms/token", "time_to_first_token_ms": "TTFT"}


def outliers(runs: pd.DataFrame, factor: float = OUTLIER_FACTOR) -> list[Outlier]:
    """Return the runs that differ from the median of all by more than a factor, up or down.

    A run whose 95 % interval overlaps the typical one (the medians of all lower and of all upper ends) is within
    noise, and left out.

    Args:
        runs: measured runs.
        factor: how far from the median a run must lie.
    """
    shares = prefill_shares(runs)
    medians = runs[[*WATCHED, "inter_token_latency_ms", "prompt_tokens_total"]].median()
    found = []
    for (_, run), share in zip(runs.iterrows(), shares.tolist(), strict=True):
        ratios = {
            title: float(run[key] / medians[key])
            for key, title in WATCHED.items()
            if say.has(run, key) and _stands_out(run, runs, key, factor)
        }
        if not ratios:
            continue
        step_ratio = (
            float(run["inter_token_latency_ms"] / medians["inter_token_latency_ms"])
            if say.has(run, "inter_token_latency_ms")
            else 1.0
        )
        length = float(run["prompt_tokens_total"] / medians["prompt_tokens_total"])
        cause = _cause(max(ratios.values()) > 1, length, share, float(shares.median()), step_ratio, factor)
        single = not say.has(run, REPEATS) or run[REPEATS] < 2
        found.append(Outlier(str(run["scenario"]), ratios, cause, share, step_ratio, single))
    return found


def outlier_lines(done: pd.DataFrame) -> list[str]:
    """Name the outliers among measured runs, a line for each cause with the numbers that point to it."""
    found = outliers(done)
    if not found:
        return [
            f"No prompt lies more than {OUTLIER_FACTOR:g}x from the median of all, up or down, beyond noise."
        ]
    median = f"{prefill_shares(done).median():.0%}"
    lines = []
    for cause, text in CAUSES.items():
        those = [each for each in found if each.cause == cause]
        if those:
            names = ", ".join(map(_named, those))
            share = _from_to([each.prefill_share for each in those], "{:.0%}")
            step = _from_to([each.step_ratio for each in those], "{:.2g}x")
            lines.append(f"Outliers: {names}: {text.format(share=share, median=median, step=step)}.")
    return lines


def _stands_out(run: pd.Series, runs: pd.DataFrame, key: str, factor: float) -> bool:
    median = runs[key].median()
    if median / factor <= run[key] <= median * factor:
        return False
    low, high = f"spread/{key}.ci_low", f"spread/{key}.ci_high"
    if not say.has(run, low) or not say.has(run, high):
        return True
    return bool(run[low] > runs[high].median() or run[high] < runs[low].median())


def _named(outlier: Outlier) -> str:
    ratios = ", ".join(f"{ratio:.2g}x {title}" for title, ratio in outlier.ratios.items())
    return f"{outlier.scenario} ({ratios}{'; one repeat: noise unknown' if outlier.single else ''})"


def _cause(
    slower: bool, length: float, share: float, median_share: float, step_ratio: float, factor: float
) -> str:
    """Return the key of `CAUSES` that the numbers point to; `length` is a multiple of the median prompt's."""
    if not slower:
        return "short_prefill" if length <= 1 / LONG_PROMPT else "unexplained"
    if length >= LONG_PROMPT and (share >= HIGH_SHARE or share >= factor * median_share):
        return "long_prefill"
    if length >= LONG_PROMPT and step_ratio > factor:
        return "long_cache"
    return "unexplained"


def _from_to(values: Sequence[float], form: str) -> str:
    ends = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return " to ".join(ends)
