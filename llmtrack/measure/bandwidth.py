"""Measure the memory bandwidth of a device: the reference for decoding speed."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from llmtrack.devices import on_gpu
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import MIB
from llmtrack.measure.ceilings import best_seconds, remembered
from llmtrack.measure.room import free_memory

LARGEST, LARGEST_ON_GPU, SMALLEST = 256 * MIB, 1024 * MIB, 64 * MIB
"""Buffer sizes in bytes."""

BEYOND_CACHE = 4
"""CPU buffer size as a multiple of the last-level caches, as STREAM requires, up to `LARGEST`."""

SHARE = 8
"""If memory is short, the buffer takes one part in this many of the free memory, and its copy another."""


@cache
def copy_bandwidth(device: str) -> float:
    """Return the device's copy bandwidth in bytes per second, counting reads and writes.

    Measured once per device, then cached (`llmtrack.measure.ceilings`).

    Raises:
        ScenarioError: too little memory for a meaningful buffer.
    """
    return remembered(device, "copy bandwidth", partial(measure_bandwidth, device))


def measure_bandwidth(device: str) -> float:
    """Measure the bandwidth: the best of several copies of a buffer larger than the caches.

    The best approximates what the hardware can do, not the average while other programs run. The buffer is smaller if
    memory is short.

    Raises:
        ScenarioError: too little memory for a meaningful buffer.
    """
    largest = LARGEST_ON_GPU if on_gpu(device) else beyond_cache(last_caches_bytes())
    size = buffer_bytes(free_memory(device), largest)
    while True:
        try:
            return _measure(device, size)
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
    """Return the total bytes of the last-level caches, shared ones counted once; 0 if unknown.

    Args:
        root: the CPU folder in sysfs.
    """
    caches: dict[tuple[int, str], int] = {}
    for path in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError, ValueError):
            level, shared, size = ((path / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            caches[int(level), shared] = int(size.removesuffix("K")) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def buffer_bytes(free: int, largest: int) -> int:
    """Return the buffer size: `largest`, or less if memory is short.

    Raises:
        ScenarioError: too little memory is free.
    """
    size = min(largest, free // SHARE)
    if size < SMALLEST:
        raise ScenarioError(
            f"only {free // MIB} MiB are free: two buffers of {SMALLEST // MIB} MiB would crowd what runs",
            kind="out_of_memory",
        )
    return size


def _measure(device: str, size: int) -> float:
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / best_seconds(device, lambda: target.copy_(source), repeats=8)
