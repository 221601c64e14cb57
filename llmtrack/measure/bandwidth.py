"""Measure what the memory of a device can move: the yardstick for decoding speed."""

from __future__ import annotations

import time
from functools import cache

MIB = 2**20


@cache
def copy_bandwidth(device: str) -> float:
    """Return the device's copy bandwidth in bytes per second, reads and writes both counted.

    The best of several copies of a buffer far larger than any cache: the bandwidth that the hardware can
    give, not the average that it gives while other programs run.
    """
    import torch

    on_gpu = device.startswith("cuda")
    source = torch.ones((1024 if on_gpu else 256) * MIB, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(8):
        if on_gpu:
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        target.copy_(source)
        if on_gpu:
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * source.numel() / best
