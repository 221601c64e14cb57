"""Measure what the memory of a device can move: the yardstick for decoding speed."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from llmtrack.devices import on_gpu
from llmtrack.errors import ScenarioError
from llmtrack.host.units import MIB
from llmtrack.measure.ceilings import best_seconds, remembered
from llmtrack.measure.room import free_memory

LARGEST, LARGEST_ON_GPU, SMALLEST = 256 * MIB, 1024 * MIB, 64 * MIB
"""Bytes of a buffer."""

BEYOND_CACHE = 4
"""On a CPU a buffer is so many times as large as its last caches, as STREAM asks for, as far as `LARGEST` goes."""

SHARE = 8
"""Where memory is short, a buffer takes this part of what is free, and the copy as much again."""


@cache
def copy_bandwidth(device: str) -> float:
    """Return the device's copy bandwidth in bytes per second, reads and writes both counted.

    Measured once for each device, and kept (`llmtrack.measure.ceilings`).

    Raises:
        ScenarioError: there is no memory for a buffer that says anything.
    """
    return remembered(device, "copy bandwidth", partial(measure_bandwidth, device))


def measure_bandwidth(device: str) -> float:
    """Measure it.

    The best of several copies of a buffer larger than the caches: the bandwidth that the hardware can
    give, not the average that it gives while other programs run. Where memory is short the buffer is smaller.

    Raises:
        ScenarioError: there is no memory for a buffer that says anything.
    """
    largest = LARGEST_ON_GPU if on_gpu(device) else beyond_cache(last_caches_bytes())
    size = buffer_bytes(free_memory(device), largest)
    while True:
        try:
            return _measure(device, size)
        # What is free by the system's word may still be refused: by an address-space limit, or by fragmentation.
        except (RuntimeError, MemoryError) as error:
            if size // 2 < SMALLEST:
                raise ScenarioError(
                    f"no memory for two buffers of {SMALLEST // MIB} MiB", kind="out_of_memory"
                ) from error
            size //= 2


def beyond_cache(cache_bytes: int) -> int:
    """Return how large a buffer is to be on a CPU whose last caches hold so much; 0: that is not known."""
    return min(LARGEST, max(SMALLEST, BEYOND_CACHE * cache_bytes)) if cache_bytes else LARGEST


def last_caches_bytes(root: Path = Path("/sys/devices/system/cpu")) -> int:
    """Return the bytes of all caches of the last level together, those that CPUs share once; 0 where it is not told.

    Args:
        root: where Linux describes its CPUs.
    """
    caches: dict[tuple[int, str], int] = {}
    for path in root.glob("cpu[0-9]*/cache/index[0-9]*"):
        with suppress(OSError, ValueError):
            level, shared, size = ((path / name).read_text().strip() for name in ("level", "shared_cpu_list", "size"))
            caches[int(level), shared] = int(size.removesuffix("K")) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def buffer_bytes(free: int, largest: int) -> int:
    """Return how large a buffer to copy: the largest, or less where little is free.

    Raises:
        ScenarioError: too little is free.
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
