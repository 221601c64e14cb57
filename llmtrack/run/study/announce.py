"""Announce what is about to run: its estimated duration, and unsupported or unused parts of the machine."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console

from llmtrack.devices import KINDS, kind_of
from llmtrack.experiment import Experiment
from llmtrack.host.formatting import clock_text, plural
from llmtrack.models import durations
from llmtrack.report.terminal import hanging, print_line, width_of
from llmtrack.run.study.plan import device_of
from llmtrack.spec.scenario import Scenario
from llmtrack.spec.serialization import digest
from llmtrack.spec.task import GenerateTask


def announcement(experiments: Sequence[Experiment], scenarios: int, took: Mapping[str, float]) -> str:
    """Describe what is about to run, with its duration as far as known.

    Args:
        scenarios: total number to measure.
        took: last duration in seconds by experiment name, if known.
    """
    work = plural(scenarios, "scenario")
    if len(experiments) > 1:
        names = ", ".join(experiment.name for experiment in experiments)
        work = f"{plural(len(experiments), 'experiment')} ({names}), {work}"
    known = [experiment.name for experiment in experiments if experiment.name in took]
    new = [experiment for experiment in experiments if experiment.name not in took]
    seconds = sum(took[name] for name in known)
    if not new:
        return f"Plan: {work}, about {clock_text(seconds)}: as long as the same took here the last time."
    sentences = [f"Plan: {work}."]
    if seconds:
        sentences.append(f"{', '.join(known)} took {clock_text(seconds)} here the last time, the others are new.")
    cap = sum(
        scenario.repeat.max_seconds
        for experiment in new
        for scenario in experiment.scenarios
        if isinstance(scenario.task, GenerateTask)
    )
    if cap:
        sentences.append(
            f"Counted calls take up to {clock_text(cap)}, plus the last one of each scenario; loading, warm-up and scoring "
            "come on top."
        )
    return " ".join([*sentences, "The remaining time is estimated while it runs."])


def last_duration(experiment: Experiment, environment_id: str) -> float | None:
    """Return the seconds that the same scenarios and their report took last time in this environment, or None."""
    return durations.last_seconds(_key(experiment, environment_id))


def record_duration(experiment: Experiment, environment_id: str, seconds: float) -> None:
    """Record the duration of an experiment whose scenarios were all measured."""
    durations.record_duration(_key(experiment, environment_id), seconds)


def print_support(console: Console, machine: Mapping[str, str], scenarios: Iterable[Scenario]) -> None:
    """Print `support_notes`."""
    for note in support_notes(machine, scenarios):
        print_line(console, hanging(f"  {note}", width_of(console)))


def support_notes(machine: Mapping[str, str], scenarios: Iterable[Scenario], system: str | None = None) -> list[str]:
    """Return a line for each unsupported or unused part of the measuring machine.

    Args:
        system: operating system as in `platform.system`; None for this machine's.
    """
    used = {kind_of(device_of(scenario.variant.device, machine)) for scenario in scenarios}
    notes = []
    if (system or platform.system()) == "Windows":
        notes.append("not supported: Windows, where llmtrack was never tried; use Linux, macOS or WSL 2")
    if "cuda" in used and "rocm" in machine:
        notes.append(f"not tried on hardware: AMD GPUs (ROCm {machine['rocm']}); check what surprises you")
    notes += [
        f"not tried on hardware: {KINDS[kind].title}; check what surprises you"
        for kind in KINDS
        if kind in used and not KINDS[kind].tried
    ]
    if used <= {"cpu"} and (unused := machine.get("unused_devices")):
        notes.append(f"not used: {unused}")
    return notes


def _key(experiment: Experiment, environment_id: str) -> str:
    ids = sorted(scenario.scenario_id for scenario in experiment.scenarios)
    return f"study {digest([experiment.name, ids, environment_id])}"
