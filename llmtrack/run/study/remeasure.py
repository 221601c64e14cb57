"""Give what was disturbed further repeats while its time allows; a baseline is measured once more, before anything is compared with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmtrack.decide.verdicts import DISTURBED
from llmtrack.measure.statistics import NOISY_CV, bootstrap_median_ci
from llmtrack.run.executors.inline import Executor
from llmtrack.run.study.merged import merged
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import REPLACED, Failure, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import RepeatPolicy

# So often a disturbed arm gets further repeats.
MOST_ROUNDS = 3
_DURATION = "total_latency_s"


def run_undisturbed(
    executor: Executor,
    group: Sequence[Scenario],
    on_event: Callable[[Event], None],
    on_disturbed: Callable[[Measurement], None],
) -> None:
    """Measure a group; what of it was disturbed is measured further.

    A baseline is measured once more as a whole, and the newer one counts. Any other arm gets further repeats as long as they fit
    into its `max_seconds`; all of its repeats count, so that none is discarded.

    Args:
        executor: what measures.
        group: scenarios of one variant.
        on_event: is told every event, of a baseline that is measured twice the newer outcome.
        on_disturbed: is told the first measurement of such a baseline; it is no baseline any more.
    """
    disturbed: list[Measurement] = []

    def hold(event: Event) -> None:
        if isinstance(event, Measurement) and _is_to_be_repeated(event):
            disturbed.append(event)
        else:
            on_event(event)

    try:
        run_scenarios(executor, group, hold)
        # The baseline first: the others are compared with it.
        disturbed.sort(key=lambda each: not each.scenario.baseline)
        while disturbed:
            first = disturbed[0]
            if not first.scenario.baseline:
                whole = _further(executor, first, on_event)
                disturbed.pop(0)
                on_event(whole)
                continue
            newer = _again(executor, first.scenario, on_event)
            disturbed.pop(0)
            if newer is None:
                on_event(first)
                continue
            tied = f"{REPLACED}, and the newer run of the study is its baseline"
            scenario = replace(first.scenario, baseline=False)
            on_disturbed(replace(first, scenario=scenario, warnings=(*first.warnings, tied)))
            on_event(_merged(first, newer))
    finally:
        # Interrupted: what is measured stays measured.
        for event in disturbed:
            on_event(event)


def _is_to_be_repeated(event: Measurement) -> bool:
    is_open = _left(event.scenario.repeat, event.samples.get(_DURATION, ())) is not None
    return event.disturbed and (event.scenario.baseline or is_open)


def _further(executor: Executor, first: Measurement, on_event: Callable[[Event], None]) -> Measurement:
    """Return a disturbed measurement with the further repeats that its time allows, until they are steady."""
    whole, policy = first, first.scenario.repeat
    for _ in range(MOST_ROUNDS):
        more = _left(policy, whole.samples.get(_DURATION, ()))
        newer = more and _again(executor, replace(first.scenario, repeat=more), on_event)
        if not newer:
            break
        whole = replace(merged((whole, newer), policy), scenario=first.scenario)
        if (calm := calmed(whole, newer)) is not None:
            return calm
    return first if whole is first else still_disturbed(whole)


def calmed(whole: Measurement, newest: Measurement) -> Measurement | None:
    """Return a measurement that is disturbed no more, since its newest part is not and its median is known well; else None."""
    half = _half_width(whole.samples[_DURATION])
    if newest.disturbed or half > NOISY_CV:
        return None
    calm = tuple(line for line in whole.warnings if not line.startswith(DISTURBED))
    told = f"disturbed at first and repeated further: the median of all repeats is known to {half:.1%}"
    return replace(whole, disturbed=False, warnings=(*calm, told))


def still_disturbed(whole: Measurement) -> Measurement:
    """Return a measurement that further repeats did not calm."""
    told = "it was repeated further, and stayed disturbed"
    return replace(whole, disturbed=True, warnings=(*whole.warnings, told))


def _left(policy: RepeatPolicy, durations: Sequence[float]) -> RepeatPolicy | None:
    """Return how often to repeat further in the time that is left; None where it is used up, or nothing was timed."""
    left = policy.max_seconds - math.fsum(durations)
    if not durations or left < 2 * max(durations):
        return None
    return replace(policy, max_seconds=left)


def _half_width(durations: Sequence[float]) -> float:
    """Return half of the 95 % interval of the median as a share of it."""
    low, high = bootstrap_median_ci(durations)
    return (high - low) / (high + low)


def _again(executor: Executor, scenario: Scenario, on_event: Callable[[Event], None]) -> Measurement | None:
    """Return a scenario's second measurement, or None if it failed; its quality is known already."""
    found: list[Measurement] = []

    def take(event: Event) -> None:
        if isinstance(event, Measurement):
            found.append(event)
        elif not isinstance(event, Failure):
            on_event(event)

    executor.run((replace(scenario, quality=None),), take)
    return found[0] if found else None


def _merged(first: Measurement, newer: Measurement) -> Measurement:
    """Return the newer timing with what was scored beside the first, which no busy machine changes."""
    before, after = (each.metrics.get("tokens_per_sec") for each in (first, newer))
    figures = f" ({before:.4g} tokens/s, this one {after:.4g})" if before and after else ""
    tied = f"measured once more, since a first run of the study was disturbed{figures}"
    return replace(
        newer,
        scenario=first.scenario,
        facts={**first.facts, **newer.facts},
        metrics={**first.metrics, **newer.metrics},
        summaries={**first.summaries, **newer.summaries},
        samples={**first.samples, **newer.samples},
        series={**first.series, **newer.series},
        texts={**first.texts, **newer.texts},
        warnings=(*newer.warnings, tied),
    )
