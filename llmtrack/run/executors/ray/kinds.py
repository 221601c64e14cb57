"""Which nodes of a cluster may measure, told apart by their hardware (pure functions)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from llmtrack.errors import UsageError
from llmtrack.host.words import plural

WHOLE_NODE = "node"
"""What a measurement has to itself unless it is told otherwise."""

KIND_LABEL = "llmtrack-kind"
"""Label by which whoever starts a node tells apart what no fact does: cooling, memory channels, a power cap."""

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
"""Facts of a node that make it another kind of machine."""


@dataclass(frozen=True)
class Node:
    """A machine of a cluster that could be asked what it is.

    Attributes:
        id: Ray's.
        name: its host name, address and the beginning of its id.
        resources: what Ray may give away of it, such as `CPU` and `GPU`.
        facts: about its hardware; `HARDWARE` names those that make kinds.
        versions: of what must be the same everywhere.
        place: its host name and address, which it keeps when it is started anew.
    """

    id: str
    name: str
    resources: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True)
class Kind:
    """Nodes that are equally fast as far as facts tell.

    Attributes:
        name: what tells it from other kinds, for a person.
        nodes: its nodes.
        needs: what a measurement takes of one, by the names of Ray's resources.
    """

    name: str
    nodes: tuple[Node, ...]
    needs: Mapping[str, float]


def read_resources(text: str) -> dict[str, float] | None:
    """Return what a measurement takes of a node, such as `CPU=4,GPU=1`; None for all of it.

    Raises:
        UsageError: the text is neither.
    """
    if text.strip() == WHOLE_NODE:
        return None
    found = {}
    for part in text.split(","):
        name, _, amount = part.strip().partition("=")
        try:
            found[name.strip()] = float(amount)
        except ValueError:
            found[name] = 0.0
        if not name.strip() or not 0 < found[name.strip()] < float("inf"):
            raise UsageError(
                f"resources {text!r} are not understood: use {WHOLE_NODE} for a machine alone, or amounts "
                "by Ray's names of them, such as CPU=4,GPU=1"
            )
    return found


def needs_of(node: Node, asked: Mapping[str, float] | None) -> dict[str, float] | None:
    """Return what a measurement takes of a node, or None where the node does not have it.

    A whole node is all its CPUs and GPUs: then nothing else that asks Ray for any of them runs beside it.
    """
    if asked is None:
        return {name: node.resources[name] for name in ("CPU", "GPU") if node.resources.get(name)} or None
    return dict(asked) if all(node.resources.get(name, 0.0) >= amount for name, amount in asked.items()) else None


def kinds_of(nodes: Sequence[Node], asked: Mapping[str, float] | None) -> tuple[Kind, ...]:
    """Return the nodes that can measure, those of a kind together; the kind with the most nodes first.

    Args:
        nodes: those of a cluster.
        asked: what a measurement takes; None: all of a node.

    Raises:
        UsageError: none of them can.
    """
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in sorted(nodes, key=lambda each: each.name):
        needs = needs_of(node, asked)
        if needs is not None:
            hardware = tuple(node.facts.get(name, "") for name in HARDWARE)
            groups.setdefault((*hardware, *sorted(needs.items())), []).append(node)
    if not groups:
        wanted = ",".join(f"{name}={amount:g}" for name, amount in (asked or {"CPU": 1}).items())
        raise UsageError(
            f"none of the {plural(len(nodes), 'node')} of the cluster has {wanted} to give to a measurement: start one "
            "that has, or ask for less by resources"
        )
    found = [Kind(_title(group[0]), tuple(group), needs_of(group[0], asked) or {}) for group in groups.values()]
    return tuple(sorted(found, key=lambda kind: (-len(kind.nodes), -sum(kind.needs.values()), kind.name)))


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
    """Return how many measurements at once there is room for on the nodes of a kind that live, by what Ray may give away."""
    return sum(
        min((int(node.resources.get(name, need) / need) for name, need in kind.needs.items()), default=1)
        for node in kind.nodes
        if node.id in alive
    )


def split_by_version(nodes: Sequence[Node], own: Mapping[str, str]) -> tuple[list[Node], list[str]]:
    """Return the nodes that run the same versions as the driver, and a line for each that does not.

    Args:
        nodes: those of a cluster.
        own: the driver's versions.
    """
    fit, lines = [], []
    for node in nodes:
        differing = [
            f"{name} {node.versions.get(name) or 'missing'} (here {own[name] or 'missing'})"
            for name in own
            if node.versions.get(name, "") != own[name]
        ]
        if differing:
            lines.append(f"node {node.name} measures nothing: it has {', '.join(differing)}; install the same there")
        else:
            fit.append(node)
    return fit, lines
