"""Ceilings of a device (copy bandwidth, matrix-product rate), measured once and cached by what they depend on."""

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
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.host.machine import cpu_model, usable_cpus
from llmtrack.measure import disturbances
from llmtrack.measure.gpus import torch_uuid
from llmtrack.measure.memory import free_memory
from llmtrack.models.cache import cache_root, write_note
from llmtrack.spec.serialization import digest

LIFETIME_S = 30 * 24 * 3600
"""Lifetime of a cached ceiling: virtual machines move, and drivers change."""

SETTLE_S = 0.5
"""Pause after measuring a GPU, whose counters lag: heat and power must not be attributed to the next measurement."""

LARGEST, LARGEST_ON_GPU, SMALLEST = 256 * MIB, 1024 * MIB, 64 * MIB
"""Sizes of the copied buffer in bytes."""

BEYOND_CACHE = 4
"""CPU buffer size as a multiple of the last-level caches, as STREAM requires, up to `LARGEST`."""

BUFFER_SHARE = 8
"""If memory is short, the buffer takes one part in this many of the free memory, and its copy another."""

SIDE, SIDE_ON_GPU, FIRST_SIDE = 4096, 8192, 512
"""Maximum side of the matrices, and the first side tried."""

ENOUGH_S = 0.03
"""Stop enlarging the matrices once a product takes this long, so that slow CPUs are not kept busy for seconds."""

MATRIX_REPEATS, FEWEST, MOST_S = 6, 3, 0.3
"""Products per size, their minimum, and the seconds after which only the minimum is made."""

MATRICES_SHARE = 8
"""The three matrices take at most one part in this many of the free memory."""

ARITHMETICS = {
    "float32": "float32",
    "tf32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "float8": "float8_e4m3fn",
}

TRIES = 3
"""How often a process measures a ceiling while other programs disturb it: each time takes a second."""

_COPIES = "copy bandwidth"

_TRIED: dict[tuple[str, str], list[float]] = {}
"""Ceilings found by this process, by device and name."""

_DOUBTS: dict[tuple[str, str], str] = {}
"""Why the last of them is doubtful."""


def copy_bandwidth(device: str) -> float:
    """Return the device's copy bandwidth in bytes per second, counting reads and writes: the reference for decoding.

    Raises:
        ScenarioError: too little memory for a meaningful buffer.
    """
    return _ceiling(device, _COPIES, partial(measure_bandwidth, device))


def matrix_rate(device: str, arithmetic: str) -> float:
    """Return the FLOP/s of a device's matrix products, two operations per multiply-add: the reference for prefill and scoring.

    Args:
        device: as named by `resolve_device`.
        arithmetic: as in `EngineInfo`, not empty.

    Raises:
        ScenarioError: too little memory for meaningful matrices, or no such product.
    """
    return _ceiling(device, _products_in(arithmetic), partial(measure_rate, device, arithmetic))


def doubts(device: str, arithmetic: str) -> str:
    """Describe which ceilings of a device in an arithmetic are doubtful, and why; empty if neither is."""
    names = (_COPIES, _products_in(arithmetic))
    return "; ".join(f"{name}: {_DOUBTS[device, name]}" for name in names if (device, name) in _DOUBTS)


def _products_in(arithmetic: str) -> str:
    # Renamed when both layouts were measured, so that older values are not read.
    return f"matrix products in {arithmetic}, of both orders"


def _ceiling(device: str, name: str, measure: Callable[[], float]) -> float:
    """Return a ceiling known to this process; while it is doubtful, measure it again, `TRIES` times in all."""
    tried = _TRIED.setdefault((device, name), [])
    if not tried or ((device, name) in _DOUBTS and len(tried) < TRIES):
        tried.append(cached_ceiling(device, name, measure))
    return max(tried) if (device, name) in _DOUBTS else tried[-1]


def folder() -> Path:
    """Return the folder of cached ceilings."""
    return cache_root() / "ceilings"


def device_id(device: str) -> str:
    """Describe everything that a device's ceilings depend on: the GPU or CPU, and how it is used.

    A CPU's depend on the threads and the usable CPUs, a GPU's only on its driver.
    """
    import torch

    if on_gpu(device):
        uuid = torch_uuid(device) if kind_of(device) == "cuda" else None
        return f"{name_of(device)} {uuid or device}, torch {torch.__version__}"
    threads = torch.get_num_threads()
    return f"{cpu_model()} of {platform.node()}, {usable_cpus()} CPUs, {threads} threads, torch {torch.__version__}"


def cached_ceiling(device: str, name: str, measure: Callable[[], float]) -> float:
    """Return a ceiling of a device, cached or newly measured.

    A measurement disturbed by other programs is not cached, is doubtful (`doubts`), and is never below what was
    measured on the same idle machine, however long ago.
    """
    identity = device_id(device)
    path = folder() / f"{digest([identity, name])}.json"
    cached, age = _read_cached(path)
    if cached and 0 <= age < LIFETIME_S:
        _DOUBTS.pop((device, name), None)
        return cached
    before = disturbances.read_cpu()
    value = measure()
    _DOUBTS.pop((device, name), None)  # not before: a measurement that fails settles nothing
    if on_gpu(device):
        time.sleep(SETTLE_S)
    others = disturbances.others_share(before, disturbances.read_cpu())
    if others > disturbances.BUSY_SHARE:
        doubt = f"other programs took {others:.0%} of the CPU time when it was measured"
    elif warnings := disturbances.gpu_warning(device):
        doubt = warnings[0]
    else:
        content = {"device": identity, "name": name, "value": value, "measured_at": time.time()}
        write_note(path, json.dumps(content, indent=1))
        return value
    if cached >= value:
        return cached
    _DOUBTS[device, name] = doubt
    return value


def _read_cached(path: Path) -> tuple[float, float]:
    """Return a cached ceiling (0 if there is none) and its age in seconds."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        content = json.loads(path.read_text(encoding="utf-8"))
        return max(0.0, float(content["value"])), time.time() - content["measured_at"]
    return 0.0, 0.0


def best_seconds(
    device: str,
    call: Callable[[], object],
    repeats: int,
    fewest: int = 0,
    most_s: float = math.inf,
    hopeless_s: float = math.inf,
) -> float:
    """Return the best time of up to `repeats` calls on a device, in seconds.

    On a GPU, several calls are submitted at once to hide the launch overhead.

    Args:
        fewest: minimum number of repeats, even beyond `most_s`, unless their best is over `hopeless_s`.
        most_s: no further repeat begins after so many seconds.
    """
    at_once = 8 if on_gpu(device) else 1
    wait = partial(synchronize, device)
    best, spent = math.inf, 0.0
    for repeat in range(repeats):
        if spent > most_s and (repeat >= fewest or best > hopeless_s):
            break
        wait()
        start = time.perf_counter()
        for _ in range(at_once):
            call()
        wait()
        seconds = time.perf_counter() - start
        spent += seconds
        best = min(best, seconds / at_once)
    return best


def measure_bandwidth(device: str) -> float:
    """Measure the best of several copies of a buffer larger than the caches, or smaller if memory is short.

    The best approximates what the hardware can do, not the average while other programs run.
    """
    largest = LARGEST_ON_GPU if on_gpu(device) else beyond_cache(last_caches_bytes())
    size = buffer_bytes(free_memory(device), largest)
    while True:
        try:
            return _copy_rate(device, size)
        # Memory reported as free may still be refused: by an address-space limit, or by fragmentation.
        except (RuntimeError, MemoryError) as error:
            if size // 2 < SMALLEST:
                raise ScenarioError(
                    f"no memory for two buffers of {SMALLEST // MIB} MiB", kind="out_of_memory"
                ) from error
            size //= 2


def beyond_cache(cache_bytes: int) -> int:
    """Return the buffer size for a CPU with last-level caches of this many bytes (0: unknown)."""
    return min(LARGEST, max(SMALLEST, BEYOND_CACHE * cache_bytes)) if cache_bytes else LARGEST


def last_caches_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the total bytes of the last-level caches, shared ones counted once; 0 if unknown."""
    caches: dict[tuple[int, str], int] = {}
    for path in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError, ValueError):
            level, shared, size = ((path / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            caches[int(level), shared] = int(size.removesuffix("K")) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def buffer_bytes(free: int, largest: int) -> int:
    """Return the buffer size: `largest`, or less if memory is short."""
    size = min(largest, free // BUFFER_SHARE)
    if size < SMALLEST:
        raise ScenarioError(
            f"only {free // MIB} MiB are free: two buffers of {SMALLEST // MIB} MiB would crowd what runs",
            kind="out_of_memory",
        )
    return size


def _copy_rate(device: str, size: int) -> float:
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / best_seconds(device, lambda: target.copy_(source), repeats=8)


def measure_rate(device: str, arithmetic: str) -> float:
    """Measure the best of several products of random square matrices, enlarged until the time is measurable."""
    if arithmetic not in ARITHMETICS:
        raise ScenarioError(
            f"no matrix product in {arithmetic or 'an unknown arithmetic'} is known", kind="unsupported"
        )
    side, largest, best = FIRST_SIDE, largest_side(free_memory(device), device), 0.0
    while True:
        seconds = _product_seconds(device, ARITHMETICS[arithmetic], side)
        best = max(best, 2 * side**3 / seconds)
        if seconds >= ENOUGH_S or 2 * side > largest:
            return best
        side *= 2


def largest_side(free: int, device: str) -> int:
    """Return the maximum side: three float32 matrices in an eighth of the free memory."""
    side = min(SIDE_ON_GPU if on_gpu(device) else SIDE, math.isqrt(free // (MATRICES_SHARE * 3 * 4)))
    if side < FIRST_SIDE:
        raise ScenarioError(
            f"too little memory is free for matrices of {FIRST_SIDE} x {FIRST_SIDE}", kind="out_of_memory"
        )
    return side


def _product_seconds(device: str, dtype: str, side: int) -> float:
    import torch

    best = math.inf
    with torch.inference_mode():
        for call in _products(device, dtype, side):
            best = min(best, best_seconds(device, call, MATRIX_REPEATS, FEWEST, MOST_S, hopeless_s=2 * best))
    return best


def _products(device: str, dtype: str, side: int) -> tuple[Callable[[], object], ...]:
    """Return functions that multiply two random matrices; 8-bit ones through torch's dedicated operators.

    The right factor is transposed, like a linear layer's weight: 8-bit kernels accept no other layout, and a CPU
    without bfloat16 support takes ten times as long otherwise. The other layout is tried as well if supported.
    """
    import torch

    if dtype == "int8":
        left, right = (torch.randint(-128, 128, (side, side), dtype=torch.int8, device=device) for _ in range(2))
        return (lambda: torch._int_mm(left, right.t()),)
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in range(2))
    if dtype.startswith("float8"):
        scale = torch.ones((), device=device)
        return (lambda: torch._scaled_mm(left, right.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16),)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right.t(), out=product), lambda: torch.mm(left, right, out=product)
