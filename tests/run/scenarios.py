"""Scenarios for tests, and helpers to read their outcomes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from llmtrack.run.executors.executor import Executor
from llmtrack.run.study.groups import run_groups
from llmtrack.run.study.journal import Journal
from llmtrack.spec.events import Event
from llmtrack.spec.outcome import Failure, Measurement, Outcome
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy

MODEL = Variant("synthetic:tiny", device="cpu")
QUICK = RepeatPolicy(warmup=1, min_repeats=2, min_seconds=0, max_repeats=2)


def generating(name: str, variant: Variant = MODEL, repeat: RepeatPolicy = QUICK, **settings: Any) -> Scenario:
    task = GenerateTask(**{"prompts": ("abcd",), "max_new_tokens": 5, **settings})
    return Scenario(name, variant, task, repeat)


def scoring(name: str, variant: Variant = MODEL, **settings: Any) -> Scenario:
    return Scenario(name, variant, PerplexityTask(**settings), QUICK)


def outcomes(events: Iterable[object]) -> list[Outcome]:
    """Return the outcomes among events."""
    return [event for event in events if isinstance(event, (Measurement, Failure))]


def by_name(events: Iterable[object]) -> dict[str, Outcome]:
    """Return the outcomes among events by the names of their scenarios."""
    return {outcome.scenario.name: outcome for outcome in outcomes(events)}


def in_groups(
    executor: Executor,
    groups: Sequence[Sequence[Scenario]],
    on_event: Callable[[Event], None],
    journal: Journal | None = None,
) -> None:
    """Measure groups; by default with a journal that cannot be written."""
    nowhere = Journal(Path(os.devnull) / "rounds", False, lambda text: None)
    run_groups(executor, groups, on_event, lambda first: None, lambda: journal or nowhere)
