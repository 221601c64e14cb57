"""Which GPU of the machine a device of torch's is: by its UUID, since CUDA may hide and reorder cards."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psutil

from llmtrack.host.child_process import WORKER
from llmtrack.host.machine import in_pid_namespace

_TIMEOUT_S = 10


@dataclass(frozen=True)
class Card:
    """A GPU as its driver lists it, in the order of the PCI bus.

    Attributes:
        uuid: such as `GPU-5c1f...`.
        name: of the model.
        driver: version of the driver.
        instances: UUIDs of its MIG instances.
    """

    uuid: str
    name: str
    driver: str
    instances: tuple[str, ...] = ()


def ask(*options: str) -> list[list[str]]:
    """Return what nvidia-smi answers, a list of fields a line; nothing where there is no such driver."""
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
    """Return all cards that the driver knows, hidden ones too."""
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
    """Return which of the processes that a driver lists are surely others than this one and its study's workers.

    In a container a driver may tell the numbers of the machine, among which this process has another one. Where this
    process is listed the numbers are its own world's; otherwise only those of processes that are seen here tell of others.
    """
    listed, own = frozenset(pids), os.getpid()
    if own not in listed:
        listed = frozenset() if in_pid_namespace() else frozenset(filter(psutil.pid_exists, listed))
    return frozenset(pid for pid in listed - {own} if not _works_for_our_study(pid))


def _works_for_our_study(pid: int) -> bool:
    """Return whether a process is a worker that this one's parent started, or was started by one.

    Models that are measured in turn stay loaded in workers of their own, and wait while another one computes.
    """
    with suppress(psutil.Error):
        process, study = psutil.Process(pid), os.getppid()
        return any(each.ppid() == study and WORKER in each.cmdline() for each in (process, *process.parents()))
    return False


def capability() -> tuple[int, int] | None:
    """Return the highest compute capability among the cards, as the driver tells it; None where it tells none."""
    found = [
        (int(major), int(minor))
        for row in ask("--query-gpu=compute_cap", "--format=csv,noheader")
        for major, _, minor in [row[0].partition(".")]
        if major.isdigit() and minor.isdigit()
    ]
    return max(found, default=None)


def card_of(device: str, own_uuid: str | None = None) -> Card | None:
    """Return the card behind a device of torch's, None where that cannot be told.

    Args:
        device: `cuda` or `cuda:N`.
        own_uuid: the UUID that torch tells of the device, if it does.
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
    """Return the UUID that torch tells of a CUDA device; None for an old torch, or without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return str(uuid) if uuid is not None else None


def visible_cards(environ: Mapping[str, str], known: Sequence[Card]) -> tuple[Card, ...]:
    """Return the cards that CUDA shows, in its order, by CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.

    By CUDA's rules an entry that names no card hides all that follow. Its own order is by speed, which is that of
    the bus where all cards are alike; of unlike ones nothing is told, unless the entries are UUIDs.

    Args:
        environ: the environment.
        known: all cards, in the order of the bus.
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
    if entry.startswith("MIG-GPU-"):  # the old form: MIG-GPU-UUID/instance/part
        entry = entry.removeprefix("MIG-").partition("/")[0]
    # A UUID may be shortened, as long as it is clear which card is meant.
    fitting = [
        card
        for card in known
        if entry.startswith(("GPU-", "MIG-")) and any(uuid.startswith(entry) for uuid in (card.uuid, *card.instances))
    ]
    return fitting[0] if len(fitting) == 1 else None
