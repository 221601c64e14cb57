"""Map torch devices to GPUs by UUID, since CUDA may hide and reorder cards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from llmtrack.host.machine import in_pid_namespace
from llmtrack.host.processes import WORKER

_TIMEOUT_S = 10


@dataclass(frozen=True)
class Card:
    """A GPU as listed by its driver, in PCI bus order.

    Attributes:
        uuid: such as `GPU-5c1f...`.
        name: model name.
        driver: driver version.
        instances: UUIDs of its MIG instances.
    """

    uuid: str
    name: str
    driver: str
    instances: tuple[str, ...] = ()


def ask(*options: str) -> list[list[str]]:
    """Query nvidia-smi; return its rows as lists of fields, or nothing without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *options],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def cards() -> tuple[Card, ...]:
    """Return all cards known to the driver, including hidden ones."""
    instances: dict[str, list[str]] = {}
    card = ""
    for line in map(",".join, ask("-L")):
        uuid = line.rpartition("UUID:")[2].strip(" )")
        if uuid.startswith("MIG-"):
            instances.setdefault(card, []).append(uuid)
        else:
            card = uuid
    rows = ask("--query-gpu=uuid,name,driver_version", "--format=csv,noheader")
    return tuple(Card(row[0], row[1], row[2], tuple(instances.get(row[0], ()))) for row in rows if len(row) == 3)


def other_pids(pids: Iterable[int]) -> frozenset[int]:
    """Return the listed processes that certainly belong neither to this process nor to its study's workers.

    In a container, a driver may report host PIDs, which differ from the container's. If this process is listed, the
    PIDs are its namespace's; otherwise only PIDs of visible processes count.
    """
    listed, own = frozenset(pids), os.getpid()
    if own not in listed:
        listed = frozenset() if in_pid_namespace() else frozenset(filter(psutil.pid_exists, listed))
    return frozenset(pid for pid in listed - {own} if not _works_for_our_study(pid))


def _works_for_our_study(pid: int) -> bool:
    """Return whether a process is a sibling worker of this one, or a descendant of one.

    Interleaved models stay loaded in their own workers while another one computes.
    """
    with suppress(psutil.Error):
        process, study = psutil.Process(pid), os.getppid()
        return any(each.ppid() == study and WORKER in each.cmdline() for each in (process, *process.parents()))
    return False


def capability() -> tuple[int, int] | None:
    """Return the highest compute capability among the cards, or None if unknown."""
    found = [
        (int(major), int(minor))
        for row in ask("--query-gpu=compute_cap", "--format=csv,noheader")
        for major, _, minor in [row[0].partition(".")]
        if major.isdigit() and minor.isdigit()
    ]
    return max(found, default=None)


def card_of(device: str, own_uuid: str | None = None) -> Card | None:
    """Return the card of a torch device, or None if it cannot be determined.

    Args:
        device: `cuda` or `cuda:N`.
        own_uuid: UUID of the device as reported by torch, if any.
    """
    index = device.partition(":")[2] or "0"
    if not device.startswith("cuda") or not index.isdigit():
        return None
    known = cards()
    if own_uuid:
        return next((card for card in known if own_uuid.lower() in card.uuid.lower()), None)
    visible = visible_cards(os.environ, known)
    return visible[int(index)] if int(index) < len(visible) else None


def torch_uuid(device: str) -> str | None:
    """Return a CUDA device's UUID as reported by torch; None for old torch versions or without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(uuid) if uuid is not None else None


def visible_cards(environ: Mapping[str, str], known: Sequence[Card]) -> tuple[Card, ...]:
    """Return the cards visible to CUDA, in its order, by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

    By CUDA's rules, an invalid entry hides all that follow. Its default order is by speed, which equals bus order if
    all cards are alike; for different cards the result is empty unless the entries are UUIDs.

    Args:
        environ: the environment.
        known: all cards, in bus order.
    """
    by_bus = environ.get("CUDA_DEVICE_ORDER", "").strip() == "PCI_BUS_ID" or len({each.name for each in known}) <= 1
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return tuple(known) if by_bus else ()
    found: list[Card] = []
    for entry in environ["CUDA_VISIBLE_DEVICES"].split(","):
        card = _named(entry.strip(), known, by_bus)
        if card is None:
            break
        found.append(card)
    return tuple(found)


def _named(entry: str, known: Sequence[Card], by_bus: bool) -> Card | None:
    if entry.isdigit():
        return known[int(entry)] if by_bus and int(entry) < len(known) else None
    if entry.startswith("MIG-GPU-"):  # legacy format: MIG-GPU-UUID/instance/part
        entry = entry.removeprefix("MIG-").partition("/")[0]
    # A UUID may be abbreviated to an unambiguous prefix.
    fitting = [
        card
        for card in known
        if entry.startswith(("GPU-", "MIG-")) and any(uuid.startswith(entry) for uuid in (card.uuid, *card.instances))
    ]
    return fitting[0] if len(fitting) == 1 else None
