"""Measure a baseline once more that was disturbed, before anything is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from llmtrack.events import Event
from llmtrack.run.executors import Executor
from llmtrack.scenario import REPLACED, Failure, Measurement, Scenario


def run_undisturbed(
    executor: Executor,
    group: Sequence[Scenario],
    on_event: Callable[[Event], None],
    on_disturbed: Callable[[Measurement], None],
) -> None:
    """Measure a group; a baseline in it that was disturbed is measured once more, and the newer one counts.

    Args:
        executor: what measures.
        group: scenarios of one variant.
        on_event: is told every event, of a baseline that is measured twice the newer outcome.
        on_disturbed: is told the first measurement of such a baseline; it is no baseline any more.
    """
    disturbed: list[Measurement] = []

    def hold(event: Event) -> None:
        if isinstance(event, Measurement) and event.scenario.baseline and event.disturbed:
            disturbed.append(event)
        else:
            on_event(event)

    try:
        executor.run(tuple(group), hold)
        while disturbed:
            newer = _again(executor, disturbed[0].scenario, on_event)
            first = disturbed.pop(0)
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
