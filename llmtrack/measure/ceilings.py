"""What a device can do at most, measured once and kept by what it depends on."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from llmtrack.devices import kind_of, name_of, on_gpu, synchronize
from llmtrack.host.machine import cpu_model, usable_cpus
from llmtrack.measure import interference
from llmtrack.measure.gpus import torch_uuid
from llmtrack.models.cache import cache_root, keep_note
from llmtrack.spec.serialization import digest

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
        device: as `resolve_device` names it.
    """
    import torch

    if on_gpu(device):
        number = torch_uuid(device) if kind_of(device) == "cuda" else None
        return f"{name_of(device)} {number or device}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{cpu_model()} of {platform.node()}, {usable_cpus()} CPUs, {threads} threads, torch {torch.__version__}"


_DOUBTS: dict[tuple[str, str], str] = {}
"""Why a ceiling that this process measured is in doubt, by device and name."""


def doubts(device: str) -> str:
    """Return which ceilings of a device are in doubt and why, in words; empty if none is."""
    return "; ".join(f"{name}: {why}" for (of, name), why in _DOUBTS.items() if of == device)


def remembered(device: str, name: str, measure: Callable[[], float]) -> float:
    """Return a ceiling of a device: as it was measured before, or else measured now.

    What is measured while other programs are busy is not kept for others, in doubt (`doubts`), and never below what was
    measured on the same machine while it was quiet, however long ago.

    Args:
        device: as `resolve_device` names it.
        name: of the ceiling.
        measure: measures it.
    """
    identity = device_id(device)
    path = folder() / f"{digest([identity, name])}.json"
    known, age = _kept(path)
    if known and 0 <= age < KEPT_SECONDS:
        return known
    before = interference.read_cpu()
    value = measure()
    if on_gpu(device):
        # Its counters lag: what this made of heat and power must not be told of what comes next.
        time.sleep(SETTLE_S)
    others = interference.others_share(before, interference.read_cpu())
    if others > interference.BUSY_SHARE:
        doubt = f"other programs took {others:.0%} of the CPU time when it was measured"
    elif found := interference.gpu_warning(device):
        doubt = found[0]
    else:
        content = {"device": identity, "name": name, "value": value, "measured_at": time.time()}
        keep_note(path, json.dumps(content, indent=1))
        return value
    if known >= value:
        return known
    _DOUBTS[device, name] = doubt
    return value


def _kept(path: Path) -> tuple[float, float]:
    """Return the ceiling that is kept in a file, 0 if there is none, and how many seconds ago it was measured."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return max(0.0, float(found["value"])), time.time() - found["measured_at"]
    return 0.0, 0.0


def best_seconds(
    device: str, act: Callable[[], object], repeats: int, fewest: int = 0, most_s: float = math.inf
) -> float:
    """Return the seconds that a device takes for something: the best of several times.

    What takes a GPU less than a millisecond is given to it several times at once, so that launching it costs no time.

    Args:
        device: as `resolve_device` names it.
        act: does it.
        repeats: how many times.
        fewest: and how many even where they take more than `most_s` seconds.
        most_s: no further time begins after so many seconds.
    """
    at_once = 8 if on_gpu(device) else 1
    wait = partial(synchronize, device)
    best, spent = math.inf, 0.0
    for repeat in range(repeats):
        if repeat >= fewest and spent > most_s:
            break
        wait()
        start = time.perf_counter()
        for _ in range(at_once):
            act()
        wait()
        seconds = time.perf_counter() - start
        spent += seconds
        best = min(best, seconds / at_once)
    return best
