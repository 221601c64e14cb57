"""Group the nodes of a cluster by hardware (pure functions)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from llmtrack.errors import UsageError
from llmtrack.host.formatting import plural

WHOLE_NODE = "node"
"""Default resources of a measurement: a whole node."""

KIND_LABEL = "llmtrack-kind"
"""Node label for differences that no fact shows: cooling, memory channels, a power cap."""

HARDWARE = (
    "machine",
    "cpu",
    "cpu_instruction_sets",
    "cpu_cores",
    "cpu_threads",
    "cpu_available",
    "memory_gib",
    "gpus",
    "node_kind",
)
"""Facts that distinguish kinds of nodes."""


@dataclass(frozen=True)
class Node:
    """A cluster node and its description.

    Attributes:
        id: Ray's node id.
        name: host name, address and the first digits of the id.
        facts: hardware facts; `HARDWARE` lists those that distinguish kinds.
        versions: versions that must agree everywhere.
        place: host name and address, unchanged by a restart.
    """

    id: str
    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True)
class Kind:
    """Nodes that are equally fast according to their facts.

    Attributes:
        name: what distinguishes it from other kinds.
    """

    name: str
    nodes: tuple[Node, ...]
    needs: Mapping[str, float]


def read_resources(text: str) -> dict[str, float] | None:
    """Parse the resources of a measurement, such as `CPU=4,GPU=1`; None for a whole node.

    Raises:
        UsageError: the text is invalid.
    """
    if text.strip() == WHOLE_NODE:
        return None
    resources = {}
    for part in text.split(","):
        name, _, amount = part.strip().partition("=")
        try:
            resources[name.strip()] = float(amount)
        except ValueError:
            resources[name] = 0.0
        if not name.strip() or not 0 < resources[name.strip()] < float("inf"):
            raise UsageError(
                f"resources {text!r} are not understood: use {WHOLE_NODE} for a machine alone, or amounts "
                "by Ray's names of them, such as CPU=4,GPU=1"
            )
    return resources


def needs_of(node: Node, requested: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return the resources of a measurement on a node, or None if the node lacks them.

    A whole node means all its CPUs and GPUs, so that nothing else that requests any from Ray runs beside it.
    """
    if requested is None:
        return {name: node.resources[name] for name in ("CPU", "GPU") if node.resources.get(name)} or None
    return (
        dict(requested) if all(node.resources.get(name, 0.0) >= amount for name, amount in requested.items()) else None
    )


def kinds_of(nodes: Sequence[Node], requested: Mapping[str, float] | None) -> tuple[Kind, ...]:
    """Group the usable nodes by kind; the largest group comes first.

    Args:
        requested: resources of a measurement; None for a whole node.

    Raises:
        UsageError: no node is usable.
    """
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        needs = needs_of(node, requested)
        if needs is not None:
            hardware = tuple(node.facts.get(name, "") for name in HARDWARE)
            groups.setdefault((*hardware, *sorted(needs.items())), []).append(node)
    if not groups:
        amounts = ",".join(f"{name}={amount:g}" for name, amount in (requested or {"CPU": 1}).items())
        raise UsageError(
            f"none of the {plural(len(nodes), 'node')} of the cluster has {amounts} to give to a measurement: start one "
            "that has, or ask for less by resources"
        )
    kinds = [Kind(_title(group[0]), tuple(group), needs_of(group[0], requested) or {}) for group in groups.values()]
    return tuple(sorted(kinds, key=lambda kind: (-len(kind.nodes), -sum(kind.needs.values()), kind.name)))


def _title(node: Node) -> str:
    facts = node.facts
    parts = [
        facts.get("node_kind", ""),
        facts.get("gpus", ""),
        facts.get("cpu", "") or facts.get("machine", ""),
        f"{facts['cpu_available']} CPUs" if "cpu_available" in facts else "",
        f"{facts['memory_gib']} GiB" if "memory_gib" in facts else "",
    ]
    return ", ".join(filter(None, parts)) or node.name


def room_on(kind: Kind, alive: Collection[str]) -> int:
    """Return how many measurements fit at once on the live nodes of a kind."""
    return sum(
        min((int(node.resources.get(name, need) / need) for name, need in kind.needs.items()), default=1)
        for node in kind.nodes
        if node.id in alive
    )


def split_by_version(nodes: Sequence[Node], expected: Mapping[str, str]) -> tuple[list[Node], list[str]]:
    """Return the nodes with the expected versions, and a line for each other node."""
    usable, lines = [], []
    for node in nodes:
        differing = [
            f"{name} {node.versions.get(name) or 'missing'} (here {expected[name] or 'missing'})"
            for name in expected
            if node.versions.get(name, "") != expected[name]
        ]
        if differing:
            lines.append(f"node {node.name} measures nothing: it has {', '.join(differing)}; install the same there")
        else:
            usable.append(node)
    return usable, lines
