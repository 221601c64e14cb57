"""What a device can do at most, measured once and kept by what it depends on."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from llmtrack.devices import cpu_model
from llmtrack.measure import interference
from llmtrack.measure.gpus import torch_uuid
from llmtrack.models.cache import cache_root
from llmtrack.plain import digest

KEPT_SECONDS = 30 * 24 * 3600
"""How long a ceiling is believed: a virtual machine moves, a driver is replaced."""


SETTLE_S = 0.5


def folder() -> Path:
    """Return the folder of what was measured."""
    return cache_root() / "ceilings"


def device_id(device: str) -> str:
    """Return all that a device's ceilings depend on, in words: the card or CPU, and with what it is used.

    A CPU's depend on the threads and on the CPUs that may be used, a card's on nothing beside it but its driver.

    Args:
        device: `cpu` or `cuda:N`.
    """
    import torch

    if device.startswith("cuda"):
        name = torch.cuda.get_device_name(device)
        return f"{name} {torch_uuid(device) or device}, torch {torch.__version__}"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    return f"{cpu_model()} of {platform.node()}, {usable} CPUs, {threads} threads, torch {torch.__version__}"


def remembered(device: str, name: str, measure: Callable[[], float]) -> float:
    """Return a ceiling of a device: as it was measured before, or else measured now.

    What is measured while other programs take a notable share of the machine is used, and not kept for others.

    Args:
        device: `cpu` or `cuda:N`.
        name: of the ceiling.
        measure: measures it.
    """
    identity = device_id(device)
    path = folder() / f"{digest([identity, name])}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if 0 <= time.time() - found["measured_at"] < KEPT_SECONDS and found["value"] > 0:
            return float(found["value"])
    before = interference.read_cpu()
    value = measure()
    if device.startswith("cuda"):
        # Its counters lag: what this made of heat and power must not be told of what comes next.
        time.sleep(SETTLE_S)
    quiet = interference.others_share(before, interference.read_cpu()) <= interference.BUSY_SHARE
    if quiet and not interference.gpu_warning(device):
        _write(path, {"device": identity, "name": name, "value": value, "measured_at": time.time()})
    return value


def _write(path: Path, content: dict[str, object]) -> None:
    """Write a file whole or not at all; without a place to keep it, it is measured again next time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".", suffix=".json", delete=False
        ) as file:
            json.dump(content, file, indent=1)
        os.replace(file.name, path)
