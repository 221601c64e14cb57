"""Measure the matrix-product rate of a device: the reference for prefill, scoring and large batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from llmtrack.devices import on_gpu
from llmtrack.errors import ScenarioError
from llmtrack.measure.ceilings import best_seconds, remembered
from llmtrack.measure.room import free_memory

SIDE, SIDE_ON_GPU, FIRST = 4096, 8192, 512
"""Maximum side of the matrices, and the first side tried."""

ENOUGH_S = 0.03
"""Stop enlarging the matrices once a product takes this long, so that slow CPUs are not kept busy for seconds."""

REPEATS, FEWEST, MOST_S = 6, 3, 0.3
"""Products per size, their minimum, and the seconds after which only the minimum is made."""

SHARE = 8
"""The three matrices take at most one part in this many of the free memory."""

DTYPES = {
    "float32": "float32",
    "tf32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "float8": "float8_e4m3fn",
}


@cache
def matrix_rate(device: str, arithmetic: str) -> float:
    """Return the FLOP/s of a device's matrix products, two operations per multiply-add.

    Measured once per device and arithmetic, then cached (`llmtrack.measure.ceilings`).

    Args:
        device: a name from `resolve_device`.
        arithmetic: as in `EngineInfo`, not empty.

    Raises:
        ScenarioError: too little memory for meaningful matrices, or no such product.
    """
    # The cache key changed when both layouts were measured, so that older values are not read.
    return remembered(
        device, f"matrix products in {arithmetic}, of both orders", partial(measure_rate, device, arithmetic)
    )


def measure_rate(device: str, arithmetic: str) -> float:
    """Measure the rate: the best of several products of random square matrices, enlarged until the time is measurable.

    Raises:
        ScenarioError: see `matrix_rate`.
    """
    if arithmetic not in DTYPES:
        raise ScenarioError(
            f"no matrix product in {arithmetic or 'an unknown arithmetic'} is known", kind="unsupported"
        )
    side, largest, best = FIRST, largest_side(free_memory(device), device), 0.0
    while True:
        seconds = _seconds(device, DTYPES[arithmetic], side)
        best = max(best, 2 * side**3 / seconds)
        if seconds >= ENOUGH_S or 2 * side > largest:
            return best
        side *= 2


def largest_side(free: int, device: str) -> int:
    """Return the maximum side: three float32 matrices in an eighth of the free memory.

    Raises:
        ScenarioError: too little memory is free.
    """
    side = min(SIDE_ON_GPU if on_gpu(device) else SIDE, math.isqrt(free // (SHARE * 3 * 4)))
    if side < FIRST:
        raise ScenarioError(f"too little memory is free for matrices of {FIRST} x {FIRST}", kind="out_of_memory")
    return side


def _seconds(device: str, dtype: str, side: int) -> float:
    """Time the fastest of the products."""
    import torch

    with torch.inference_mode():
        return min(best_seconds(device, act, REPEATS, FEWEST, MOST_S) for act in _products(device, dtype, side))


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
        one = torch.ones((), device=device)
        return (lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16),)
    product = torch.empty_like(left)
    return lambda: torch.mm(left, right.t(), out=product), lambda: torch.mm(left, right, out=product)
