"""Notes about unsupported or unused parts of this machine, printed before a study starts."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping

from rich.console import Console

from llmtrack.devices import KINDS, kind_of
from llmtrack.report.terminal import hanging, say, width_of
from llmtrack.run.study.plan import device_of
from llmtrack.spec.scenario import Scenario


def support_notes(machine: Mapping[str, str], scenarios: Iterable[Scenario], system: str | None = None) -> list[str]:
    """Return a line for each unsupported or unused part of the measuring machine.

    Args:
        machine: facts from `llmtrack.worker.machine.describe`.
        scenarios: what is to be measured.
        system: operating system as in `platform.system`; None for this machine's.
    """
    used = {kind_of(device_of(each.variant.device, machine)) for each in scenarios}
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


def say_support(console: Console, machine: Mapping[str, str], scenarios: Iterable[Scenario]) -> None:
    """Print `support_notes`."""
    for note in support_notes(machine, scenarios):
        say(console, hanging(f"  {note}", width_of(console)))
