"""Remeasure a disturbed baseline before others are compared with it; give other disturbed scenarios more repeats while
their time allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from llmtrack.decide.verdicts import DISTURBED
from llmtrack.host.formatting import significant
from llmtrack.measure.statistics import NOISY_CV, bootstrap_median_ci
from llmtrack.run.executors.executor import Executor
from llmtrack.run.study.merge import merge_measurements
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.spec.events import Collected, Event
from llmtrack.spec.outcome import REPLACED, Measurement
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.task import RepeatPolicy

MOST_ROUNDS = 3
"""Maximum extra rounds of a disturbed scenario."""

_DURATION = "total_latency_s"


def run_undisturbed(
    executor: Executor,
    group: Sequence[Scenario],
    on_event: Callable[[Event], None],
    on_disturbed: Callable[[Measurement], None],
) -> None:
    """Measure a group; repeat what was disturbed.

    A disturbed baseline is measured again as a whole, and the newer measurement counts. Other disturbed scenarios get
    more repeats while they fit into `max_seconds`; all repeats count.

    Args:
        on_event: receives every event; for a remeasured baseline, the newer outcome.
        on_disturbed: receives the first measurement of a remeasured baseline, no longer marked as a baseline.
    """
    disturbed: list[Measurement] = []

    def hold(event: Event) -> None:
        if isinstance(event, Measurement) and _needs_repeats(event):
            disturbed.append(event)
        else:
            on_event(event)

    try:
        run_scenarios(executor, group, hold)
        # The baseline first, since the others are compared with it.
        disturbed.sort(key=lambda measurement: not measurement.scenario.baseline)
        while disturbed:
            first = disturbed[0]
            if not first.scenario.baseline:
                repeated = _repeat(executor, first, on_event)
                disturbed.pop(0)
                on_event(repeated)
                continue
            newer = _measure_again(executor, first.scenario, on_event)
            disturbed.pop(0)
            if newer is None:
                on_event(first)
                continue
            warning = f"{REPLACED}, and the newer run of the study is its baseline"
            scenario = replace(first.scenario, baseline=False)
            on_disturbed(replace(first, scenario=scenario, warnings=(*first.warnings, warning)))
            on_event(_with_first_quality(first, newer))
    finally:
        # Interrupted: keep what is measured.
        for event in disturbed:
            on_event(event)


def _needs_repeats(event: Measurement) -> bool:
    is_open = _remaining_policy(event.scenario.repeat, event.samples.get(_DURATION, ())) is not None
    return event.disturbed and (event.scenario.baseline or is_open)


def _repeat(executor: Executor, first: Measurement, on_event: Callable[[Event], None]) -> Measurement:
    """Repeat a disturbed measurement until it is steady or its time is used up."""
    merged, policy = first, first.scenario.repeat
    for _ in range(MOST_ROUNDS):
        rest = _remaining_policy(policy, merged.samples.get(_DURATION, ()))
        newer = rest and _measure_again(executor, replace(first.scenario, repeat=rest), on_event)
        if not newer:
            break
        merged = replace(merge_measurements((merged, newer), policy), scenario=first.scenario)
        if (calm := settled(merged, newer)) is not None:
            return calm
    return first if merged is first else still_disturbed(merged)


def settled(merged: Measurement, last: Measurement) -> Measurement | None:
    """Return the merged measurement as undisturbed if its newest part is steady and its median precise; else None."""
    precision = _half_width(merged.samples[_DURATION])
    if last.disturbed or precision > NOISY_CV:
        return None
    warnings = tuple(line for line in merged.warnings if not line.startswith(DISTURBED))
    note = f"disturbed at first, then repeated: the median of all repeats is known to {precision:.1%}"
    return replace(merged, disturbed=False, warnings=(*warnings, note))


def still_disturbed(merged: Measurement) -> Measurement:
    """Return a measurement that stayed disturbed after more repeats."""
    note = "still disturbed after more repeats"
    return replace(merged, disturbed=True, warnings=(*merged.warnings, note))


def _remaining_policy(policy: RepeatPolicy, durations: Sequence[float]) -> RepeatPolicy | None:
    """Return the policy for the remaining time; None if it is used up or nothing was timed."""
    seconds = policy.max_seconds - math.fsum(durations)
    if not durations or seconds < 2 * max(durations):
        return None
    return replace(policy, max_seconds=seconds)


def _half_width(durations: Sequence[float]) -> float:
    """Return half of the 95 % interval of the median, relative to it."""
    low, high = bootstrap_median_ci(durations)
    return (high - low) / (high + low)


def _measure_again(executor: Executor, scenario: Scenario, on_event: Callable[[Event], None]) -> Measurement | None:
    """Remeasure a scenario without its quality, which is already known; None if it failed."""
    collected = Collected(on_event)
    executor.run((replace(scenario, quality=None),), collected)
    return next((outcome for outcome in collected.outcomes if isinstance(outcome, Measurement)), None)


def _with_first_quality(first: Measurement, newer: Measurement) -> Measurement:
    """Combine the newer timing with the quality scored beside the first, which is unaffected by a busy machine."""
    before, after = (measurement.metrics.get("tokens_per_sec") for measurement in (first, newer))
    speeds = f" ({significant(before)} tokens/s before, {significant(after)} now)" if before and after else ""
    warning = f"remeasured: the first run was disturbed{speeds}"
    return replace(
        newer,
        scenario=first.scenario,
        facts={**first.facts, **newer.facts},
        metrics={**first.metrics, **newer.metrics},
        summaries={**first.summaries, **newer.summaries},
        samples={**first.samples, **newer.samples},
        series={**first.series, **newer.series},
        texts={**first.texts, **newer.texts},
        warnings=(*newer.warnings, warning),
    )
