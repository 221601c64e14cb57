"""Announce what is about to run, with an estimated duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmtrack.experiment import Experiment
from llmtrack.host.formatting import clock_text, plural
from llmtrack.models import durations
from llmtrack.spec.serialization import digest
from llmtrack.spec.task import GenerateTask


def last_time(experiment: Experiment, environment_id: str) -> float | None:
    """Return the seconds that the same scenarios took last time in this environment, including the report, or None."""
    return durations.seconds_of(_key(experiment, environment_id))


def keep_time(experiment: Experiment, environment_id: str, seconds: float) -> None:
    """Record the duration of an experiment whose scenarios were all measured."""
    durations.note(_key(experiment, environment_id), seconds)


def plan_of(experiments: Sequence[Experiment], scenarios: int, took: Mapping[str, float]) -> str:
    """Describe what is about to run, with its duration as far as known.

    Args:
        experiments: in order.
        scenarios: total number to measure.
        took: last duration in seconds by experiment name, if known.
    """
    what = plural(scenarios, "scenario")
    if len(experiments) > 1:
        names = ", ".join(each.name for each in experiments)
        what = f"{plural(len(experiments), 'experiment')} ({names}), {what}"
    known = sum(took[each.name] for each in experiments if each.name in took)
    new = [each for each in experiments if each.name not in took]
    if not new:
        return f"Plan: {what}, about {clock_text(known)}: as long as the same took here the last time."
    asked = (each for experiment in new for each in experiment.scenarios)
    cap = sum(each.repeat.max_seconds for each in asked if isinstance(each.task, GenerateTask))
    told = [f"Plan: {what}."]
    if known:
        names = ", ".join(each.name for each in experiments if each.name in took)
        told.append(f"{names} took {clock_text(known)} here the last time, the others are new.")
    if cap:
        told.append(
            f"Counted calls take {clock_text(cap)} at most, and mostly less; loading, warming up and scoring come on top."
        )
    return " ".join([*told, "The time left is estimated as it goes on."])


def _key(experiment: Experiment, environment_id: str) -> str:
    asked = sorted(each.scenario_id for each in experiment.scenarios)
    return f"study {digest([experiment.name, asked, environment_id])}"
