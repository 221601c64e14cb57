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
    """A GPU as listed by its driver.

    Attributes:
        uuid: such as `GPU-5c1f...`.
        driver: its version.
        instances: UUIDs of its MIG instances.
    """

    uuid: str
    name: str
    driver: str
    instances: tuple[str, ...] = ()


def query_driver(*options: str) -> list[list[str]]:
    """Query nvidia-smi; return its rows as lists of fields, or nothing without a driver."""
    try:
        completed = subprocess.run(
            ["nvidia-smi", *options], capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[field.strip() for field in line.split(",")] for line in completed.stdout.splitlines() if line.strip()]


def cards() -> tuple[Card, ...]:
    """Return all cards known to the driver, including hidden ones, in PCI bus order."""
    instances: dict[str, list[str]] = {}
    card = ""
    for line in map(",".join, query_driver("-L")):
        uuid = line.rpartition("UUID:")[2].strip(" )")
        if uuid.startswith("MIG-"):
            instances.setdefault(card, []).append(uuid)
        else:
            card = uuid
    rows = query_driver("--query-gpu=uuid,name,driver_version", "--format=csv,noheader")
    return tuple(Card(row[0], row[1], row[2], tuple(instances.get(row[0], ()))) for row in rows if len(row) == 3)


def other_pids(pids: Iterable[int]) -> frozenset[int]:
    """Return the listed processes that certainly belong neither to this process nor to its study's workers.

    In a container, a driver may report host PIDs, which differ from the container's. If this process is listed, the
    PIDs are its namespace's; otherwise only PIDs of visible processes count.
    """
    listed, this_process = frozenset(pids), os.getpid()
    if this_process not in listed:
        listed = frozenset() if in_pid_namespace() else frozenset(filter(psutil.pid_exists, listed))
    return frozenset(pid for pid in listed - {this_process} if not _belongs_to_study(pid))


def _belongs_to_study(pid: int) -> bool:
    """Return whether a process is a sibling worker of this one, or a descendant of one.

    Interleaved models stay loaded in their own workers while another one computes.
    """
    with suppress(psutil.Error):
        process, study = psutil.Process(pid), os.getppid()
        ancestry = (process, *process.parents())
        return any(ancestor.ppid() == study and WORKER in ancestor.cmdline() for ancestor in ancestry)
    return False


def capability() -> tuple[int, int] | None:
    """Return the highest compute capability among the cards, or None if unknown."""
    capabilities = [
        (int(major), int(minor))
        for row in query_driver("--query-gpu=compute_cap", "--format=csv,noheader")
        for major, _, minor in [row[0].partition(".")]
        if major.isdigit() and minor.isdigit()
    ]
    return max(capabilities, default=None)


def card_of(device: str, uuid: str | None = None) -> Card | None:
    """Return the card of a torch device, or None if it cannot be determined.

    Args:
        device: `cuda` or `cuda:N`.
        uuid: as reported by torch, if any.
    """
    index = device.partition(":")[2] or "0"
    if not device.startswith("cuda") or not index.isdigit():
        return None
    all_cards = cards()
    if uuid:
        return next((card for card in all_cards if uuid.lower() in card.uuid.lower()), None)
    visible = visible_cards(os.environ, all_cards)
    return visible[int(index)] if int(index) < len(visible) else None


def torch_uuid(device: str) -> str | None:
    """Return a CUDA device's UUID as reported by torch; None for old torch versions or without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(uuid) if uuid is not None else None


def visible_cards(environ: Mapping[str, str], all_cards: Sequence[Card]) -> tuple[Card, ...]:
    """Return the cards visible to CUDA, in its order, by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

    By CUDA's rules, an invalid entry hides all that follow. Its default order is by speed, which equals bus order if
    all cards are alike; for different cards the result is empty unless the entries are UUIDs.

    Args:
        all_cards: in bus order.
    """
    alike = len({card.name for card in all_cards}) <= 1
    by_bus = alike or environ.get("CUDA_DEVICE_ORDER", "").strip() == "PCI_BUS_ID"
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return tuple(all_cards) if by_bus else ()
    visible: list[Card] = []
    for entry in environ["CUDA_VISIBLE_DEVICES"].split(","):
        card = _card_named(entry.strip(), all_cards, by_bus)
        if card is None:
            break
        visible.append(card)
    return tuple(visible)


def _card_named(entry: str, all_cards: Sequence[Card], by_bus: bool) -> Card | None:
    if entry.isdigit():
        return all_cards[int(entry)] if by_bus and int(entry) < len(all_cards) else None
    if entry.startswith("MIG-GPU-"):  # legacy format: MIG-GPU-UUID/instance/part
        entry = entry.removeprefix("MIG-").partition("/")[0]
    # A UUID may be abbreviated to an unambiguous prefix.
    matches = [
        card
        for card in all_cards
        if entry.startswith(("GPU-", "MIG-")) and any(uuid.startswith(entry) for uuid in (card.uuid, *card.instances))
    ]
    return matches[0] if len(matches) == 1 else None
