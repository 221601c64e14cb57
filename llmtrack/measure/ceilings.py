"""Limits of a device, measured once and cached by everything they depend on."""

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
"""Lifetime of a cached ceiling: virtual machines move, and drivers change."""


SETTLE_S = 0.5


def folder() -> Path:
    """Return the folder of cached measurements."""
    return cache_root() / "ceilings"


def device_id(device: str) -> str:
    """Describe everything that a device's ceilings depend on: the GPU or CPU, and how it is used.

    A CPU's depend on the threads and the usable CPUs, a GPU's only on its driver.

    Args:
        device: as named by `resolve_device`.
    """
    import torch

    if on_gpu(device):
        number = torch_uuid(device) if kind_of(device) == "cuda" else None
        return f"{name_of(device)} {number or device}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{cpu_model()} of {platform.node()}, {usable_cpus()} CPUs, {threads} threads, torch {torch.__version__}"


_DOUBTS: dict[tuple[str, str], str] = {}
"""Reasons for doubts about ceilings measured by this process, by device and name."""


def doubts(device: str) -> str:
    """Describe the doubtful ceilings of a device and why; empty if there are none."""
    return "; ".join(f"{name}: {why}" for (of, name), why in _DOUBTS.items() if of == device)


def remembered(device: str, name: str, measure: Callable[[], float]) -> float:
    """Return a ceiling of a device, cached or newly measured.

    A measurement disturbed by other programs is not cached, is doubtful (`doubts`), and is never below what was
    measured on the same idle machine, however long ago.

    Args:
        device: as named by `resolve_device`.
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
        # Its counters lag: heat and power of this measurement must not be attributed to the next.
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
    """Return a cached ceiling, 0 if there is none, and its age in seconds."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return max(0.0, float(found["value"])), time.time() - found["measured_at"]
    return 0.0, 0.0


def best_seconds(
    device: str, act: Callable[[], object], repeats: int, fewest: int = 0, most_s: float = math.inf
) -> float:
    """Return the best time of several repeats on a device, in seconds.

    On a GPU, several calls are submitted at once to hide the launch overhead.

    Args:
        device: as named by `resolve_device`.
        act: the function to time.
        repeats: maximum number of repeats.
        fewest: minimum number of repeats, even beyond `most_s`.
        most_s: no further repeat begins after so many seconds.
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
