"""Measure how fast a device multiplies matrices: the yardstick for prefill, scoring and large batches."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from llmtrack.devices import on_gpu
from llmtrack.errors import ScenarioError
from llmtrack.measure.ceilings import best_seconds, remembered
from llmtrack.measure.room import free_memory

SIDE, SIDE_ON_GPU, FIRST = 4096, 8192, 512
"""Rows and columns of the matrices at most, and of the first that are tried."""

ENOUGH_S = 0.03
"""A product that takes so long is not made larger: it tells the rate, and a slow CPU must not be kept busy for seconds."""

REPEATS, FEWEST, MOST_S = 6, 3, 0.3
"""Products of one size, and those that are made even where they take more seconds than that."""

SHARE = 8
"""The three matrices take at most this part of what is free."""

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
    """Return the floating-point operations per second that a device's matrix products reach, two for each multiply-add.

    Measured once for each device and arithmetic, and kept (`llmtrack.measure.ceilings`).

    Args:
        device: as `resolve_device` names it.
        arithmetic: as in `EngineInfo`, not empty.

    Raises:
        ScenarioError: there is no memory for matrices that say anything, or no such product.
    """
    # The name says how: what an earlier release kept of one order of the factors only is not read.
    return remembered(
        device, f"matrix products in {arithmetic}, of both orders", partial(measure_rate, device, arithmetic)
    )


def measure_rate(device: str, arithmetic: str) -> float:
    """Measure it: the best rate of several products of square matrices of random numbers, of growing size.

    The best of all sizes: products whose kernel does not block for the caches are slower when they are larger.

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
    """Return how large matrices may be: three of them, in 4 bytes, in an eighth of what is free.

    Raises:
        ScenarioError: too little is free.
    """
    side = min(SIDE_ON_GPU if on_gpu(device) else SIDE, math.isqrt(free // (SHARE * 3 * 4)))
    if side < FIRST:
        raise ScenarioError(f"too little memory is free for matrices of {FIRST} x {FIRST}", kind="out_of_memory")
    return side


def _seconds(device: str, dtype: str, side: int) -> float:
    """Return the seconds of one product, in the faster of its orders."""
    import torch

    with torch.inference_mode():
        return min(best_seconds(device, act, REPEATS, FEWEST, MOST_S) for act in _products(device, dtype, side))


def _products(device: str, dtype: str, side: int) -> tuple[Callable[[], object], ...]:
    """Return products of two matrices of random numbers, through the operators that torch has for 8 bits.

    The right factor is transposed, as the weight of a linear layer is: cards multiply 8 bits in this order only, and a
    CPU without bfloat16 takes ten times as long in the other one. Where that order exists, it is tried as well.
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
