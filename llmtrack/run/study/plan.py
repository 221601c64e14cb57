"""Plan a study: resolve devices and dtypes, find equivalent scenarios, group by variant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llmtrack.devices import choose_device, choose_dtype, kind_of
from llmtrack.engines.registry import backends
from llmtrack.errors import UsageError
from llmtrack.models.source import parse_candidates
from llmtrack.spec.scenario import Scenario, Variant


@dataclass(frozen=True)
class SameAs:
    """A scenario that is not measured because it equals another one once its dtype is resolved.

    Attributes:
        measured: the equal one, earlier in the study.
    """

    scenario: Scenario
    measured: Scenario
    dtype_label: str


@dataclass(frozen=True)
class Plan:
    """What to measure, in groups that share a loaded engine, and what to skip."""

    groups: tuple[tuple[Scenario, ...], ...]
    same: tuple[SameAs, ...]

    def without(self, names: Collection[str]) -> Plan:
        """Return the plan without the named scenarios."""
        groups = (tuple(scenario for scenario in group if scenario.name not in names) for group in self.groups)
        return Plan(tuple(filter(None, groups)), tuple(s for s in self.same if s.scenario.name not in names))


def make_plan(scenarios: Sequence[Scenario], machine: Mapping[str, str]) -> Plan:
    """Plan the scenarios of a study for a machine.

    Args:
        machine: facts from `worker.machine.describe`; `devices` and `bfloat16` are used.

    Raises:
        UsageError: two scenarios share a name, or a model, backend, device or dtype is unavailable.
    """
    names = [scenario.name for scenario in scenarios]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"scenarios need names of their own: {', '.join(repeated)} is used twice")
    for variant in dict.fromkeys(scenario.variant for scenario in scenarios):
        _check(variant, machine)
    first_of: dict[Scenario, Scenario] = {}
    groups: dict[Variant, list[Scenario]] = {}
    same = []
    for scenario in scenarios:
        identity, label = resolved(scenario, machine)
        if identity in first_of:
            same.append(SameAs(scenario, first_of[identity], label))
            continue
        first_of[identity] = scenario
        groups.setdefault(scenario.variant, []).append(scenario)
    return Plan(tuple(tuple(group) for group in groups.values()), tuple(same))


def resolved(scenario: Scenario, machine: Mapping[str, str]) -> tuple[Scenario, str]:
    """Return a scenario with device and dtype resolved and without its name, and the dtype label."""
    device = device_of(scenario.variant.device, machine)
    has_bfloat16 = kind_of(device) in _listed(machine, "bfloat16")
    dtype, label = choose_dtype(scenario.variant.dtype, device, has_bfloat16)
    variant = replace(scenario.variant, device=device, dtype=dtype)
    return replace(scenario, name="", baseline=False, variant=variant), label


def model_folders(scenarios: Sequence[Scenario]) -> tuple[Path, ...]:
    """Return the paths of the models that are local folders or files."""
    models = dict.fromkeys(scenario.variant.model for scenario in scenarios)
    sources = (source for model in models for source in parse_candidates(model))
    local = (Path(source.location).absolute() for source in sources if source.kind in ("folder", "gguf"))
    return tuple(path for path in local if path.exists())


def _check(variant: Variant, machine: Mapping[str, str]) -> None:
    parse_candidates(variant.model)
    if variant.backend not in backends():
        raise UsageError(f"unknown backend {variant.backend!r}: there are {', '.join(backends())}")
    devices = _listed(machine, "devices")
    if device_of(variant.device, machine) not in devices:
        raise UsageError(f"unknown device {variant.device!r}: use auto, or one of this machine: {', '.join(devices)}")


def device_of(requested: str, machine: Mapping[str, str]) -> str:
    """Resolve a requested device on a machine."""
    return choose_device(requested, _listed(machine, "devices"))


def _listed(machine: Mapping[str, str], key: str) -> list[str]:
    return machine.get(key, "").split(",")
